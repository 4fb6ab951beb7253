"""Cells that are known to be wrong; empty when there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.grid.cell import Cell
from tests.grid.loops import TRACED


class Fault(NamedTuple):
    """A known fault.

    Attributes:
        what: what is wrong, in a few words.
        shows: whether a cell shows it.
    """

    what: str
    shows: Callable[[Cell], bool]


FAULTS: list[Fault] = [
    Fault(
        "diloco with two optimizers whose step is traced ends elsewhere when it is resumed (eagerly it does not)",
        lambda cell: (
            cell.recipe == "diloco"
            and cell.model == "two_optimizers"
            and cell.way.startswith("checkpoint")
            and cell.loop in TRACED
        ),
    ),
]


def of(cell: Cell) -> Fault | None:
    """The first fault that a cell shows."""
    return next((row for row in FAULTS if row.shows(cell)), None)
