"""Values of different axes that make no sense together, so that no cell holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.grid.recipes import RECIPES


class Rule(NamedTuple):
    """The axes that it looks at, which values of them are forbidden together, and why."""

    axes: tuple[str, ...]
    forbids: Callable[..., Any]
    because: str


RULES = [
    Rule(
        ("recipe", "density"),
        lambda recipe, density: density == "some" and not RECIPES[recipe].lossy,
        "it sends everything in any case",
    ),
    Rule(
        ("way", "when"),
        lambda way, when: "checkpoint" in way and way != "tf_checkpoint" and when == "before",
        "there is no checkpoint before the first epoch ends",
    ),
    Rule(
        ("when", "passes", "recipe"),
        lambda when, passes, recipe: when == "middle" and passes == "single" and recipe != "diloco",
        "such a step has no middle",
    ),
    Rule(
        ("shape", "data"), lambda shape, data: shape == "1x1" and data == "same", "one rank has nobody to differ from"
    ),
]


def forbids(values: Mapping[str, str]) -> bool:
    """Whether a rule forbids these values, of some axes or of all."""
    return any(rule.forbids(*(values[axis] for axis in rule.axes)) for rule in RULES if set(rule.axes) <= values.keys())
