"""Cells that are known to be wrong; empty when there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.grid.cell import Cell
from tests.grid.models import MODELS
from tests.grid.recipes import RECIPES

FILES = ("model_file", "model_file_on_rank_0", "weights_file", "weights_back")
AHEAD = ("recommended", "diloco")
WHOLE = ("Lamb", "Adafactor", "Muon", "LARS", "LAMB")


class Fault(NamedTuple):
    """A known fault: its number in the list of faults, and the cells that show it."""

    number: str
    shows: Callable[[Cell], bool]


def _takes_over(cell: Cell) -> bool:
    """Whether the exchange keeps what the optimizer would."""
    return cell.node_updates or RECIPES[cell.recipe].corrects


FAULTS: list[Fault] = [
    Fault("3", lambda cell: cell.model == "spectral" and cell.recipe in AHEAD and cell.is_simulated),
    Fault(
        "5", lambda cell: cell.model == "towers" and cell.node_updates and cell.optimizer in WHOLE and cell.is_simulated
    ),
    Fault("10", lambda cell: cell.has_sums and not cell.alike and cell.way.startswith("checkpoint")),
    Fault(
        "10",
        lambda cell: bool(MODELS[cell.model].statistics)
        and cell.data == "own"
        and cell.ranks > 1
        and cell.way in ("checkpoint_same", "checkpoint_new", "checkpoint_dense")
        and (cell.is_exact or cell.is_simulated),
    ),
    Fault("13", lambda cell: cell.way == "deepcopy"),
    Fault(
        "12", lambda cell: cell.model == "two_optimizers" and cell.way.startswith("checkpoint") and _takes_over(cell)
    ),
    Fault("12", lambda cell: cell.model == "two_optimizers" and cell.way in FILES and _takes_over(cell)),
]


def of(cell: Cell) -> Fault | None:
    """The first fault that a cell shows."""
    return next((row for row in FAULTS if row.shows(cell)), None)
