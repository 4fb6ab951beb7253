"""What is refused: which values together, in which words, the same on every rank; `python -m tests.grid` prints it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.grid.cell import AXES, Cell
from tests.grid.recipes import GRADIENTS, RECIPES

NO_FIRST_MOMENT = ("Lion", "Nadam", "Ftrl", "Adafactor", "Muon")
NOT_ON_NODES = ("Nadam", "Ftrl")


class Refusal(NamedTuple):
    """Values that are refused together.

    Attributes:
        what: what is refused, for the table.
        axes: the axes that decide it.
        refuses: whether values of these axes are refused.
        says: a part of the error.
        instead: what works, for the table.
    """

    what: str
    axes: tuple[str, ...]
    refuses: Callable[..., Any]
    says: str
    instead: str


REFUSALS = [
    Refusal(
        f"`momentum_corrected` with {', '.join(NO_FIRST_MOMENT)}",
        ("recipe", "optimizer"),
        lambda recipe, optimizer: recipe == "corrected" and optimizer in NO_FIRST_MOMENT,
        "The exchange cannot take over the momentum of",
        "another optimizer, or the recipe without momentum correction",
    ),
    Refusal(
        f"`updates`, `recommended` and `diloco` with {', '.join(NOT_ON_NODES)}",
        ("recipe", "optimizer"),
        lambda recipe, optimizer: RECIPES[recipe].applies != GRADIENTS and optimizer in NOT_ON_NODES,
        "on a node's gradient: use one of",
        "another optimizer, or a recipe that exchanges gradients",
    ),
]


def forbids(values: Mapping[str, str]) -> bool:
    """Whether these values, of some axes or of all, are refused."""
    return any(row.refuses(*(values[axis] for axis in row.axes)) for row in REFUSALS if set(row.axes) <= values.keys())


def of(cell: Cell) -> Refusal | None:
    """The first row that refuses a cell."""
    return next((row for row in REFUSALS if row.refuses(*(getattr(cell, axis) for axis in row.axes))), None)


def examples() -> list[Cell]:
    """A cell for each combination of values that is refused; the other axes have their first values."""
    usual = {axis: values[0] for axis, values in AXES.items()}
    return [
        Cell(**{**usual, **dict(zip(row.axes, values, strict=True))})
        for row in REFUSALS
        for values in itertools.product(*(AXES[axis] for axis in row.axes))
        if row.refuses(*values)
    ]


def table() -> str:
    """The table in Markdown."""
    lines = ["| what | error | instead |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {row.what} | {row.says} ... | {row.instead} |" for row in REFUSALS)])
