"""Cells that are known to be wrong; empty when there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.grid.cell import Cell


class Fault(NamedTuple):
    """A known fault.

    Attributes:
        what: what is wrong, in a few words.
        shows: whether a cell shows it.
    """

    what: str
    shows: Callable[[Cell], bool]


FAULTS: list[Fault] = []


def of(cell: Cell) -> Fault | None:
    """The first fault that a cell shows."""
    return next((row for row in FAULTS if row.shows(cell)), None)
