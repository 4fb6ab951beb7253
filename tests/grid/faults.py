"""Cells that are known to be wrong; empty when there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.grid.cell import AHEAD, Cell
from tests.grid.models import MODELS
from tests.grid.recipes import RECIPES

FILES = ("model_file", "model_file_on_rank_0", "weights_file", "weights_back")
LAZY = ("checkpoint_new", "checkpoint_dense", "checkpoint_ranks", "model_file_on_rank_0", "broadcast")
WHOLE = ("Lamb", "Adafactor", "Muon", "LARS", "LAMB")


class Fault(NamedTuple):
    """A known fault.

    Attributes:
        number: its number in the list of faults.
        shows: whether a cell shows it.
        always: whether each of these cells fails; otherwise some pass, by chance or because ranks are alike.
    """

    number: str
    shows: Callable[[Cell], bool]
    always: bool = True


def _takes_over(cell: Cell) -> bool:
    """Whether the exchange keeps what the optimizer would."""
    return cell.node_updates or RECIPES[cell.recipe].corrects


def _has_state(cell: Cell) -> bool:
    return bool(MODELS[cell.model].statistics) and (cell.model == "stateful" or cell.data == "own")


FAULTS: list[Fault] = [
    Fault("1", lambda cell: "embedding" in cell.model and cell.node_updates and cell.way in LAZY, always=False),
    Fault("3", lambda cell: cell.model == "spectral" and cell.recipe in AHEAD and cell.is_simulated, always=False),
    Fault(
        "5",
        lambda cell: cell.model == "towers" and cell.node_updates and cell.optimizer in WHOLE and cell.is_simulated,
        always=False,
    ),
    Fault("10", lambda cell: cell.has_sums and not cell.alike and cell.way.startswith("checkpoint"), always=False),
    Fault("10", lambda cell: _has_state(cell) and cell.way.startswith("checkpoint"), always=False),
    Fault("10", lambda cell: cell.way == "broadcast" and "own/" in MODELS[cell.model].own, always=False),
    Fault(
        "10, by names of slots",
        lambda cell: cell.optimizer == "Adafactor" and "local" in cell.model and cell.way.startswith("checkpoint"),
        always=False,
    ),
    Fault("12", lambda cell: cell.model == "two_optimizers" and cell.way.startswith("checkpoint"), always=False),
    Fault("12", lambda cell: cell.model == "two_optimizers" and cell.way in FILES, always=False),
    Fault("13", lambda cell: cell.way == "deepcopy", always=False),
]


def of(cell: Cell) -> Fault | None:
    """The first fault that a cell shows."""
    return next((row for row in FAULTS if row.shows(cell)), None)
