"""Gives aggregators the names of the recipes that made them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from hvd_sparse.aggregators.base import Aggregator

_Arguments = ParamSpec("_Arguments")


def named(make: Callable[_Arguments, Aggregator]) -> Callable[_Arguments, Aggregator]:
    """Has what a recipe makes carry the recipe's name, with those of the recipes in it, for telemetry."""

    @functools.wraps(make)
    def made(*args: _Arguments.args, **options: _Arguments.kwargs) -> Aggregator:
        recipe = make(*args, **options)
        given = (*args, *options.values())
        inner = [each.recipe_name for each in given if isinstance(each, Aggregator) and each.recipe_name]
        name = f"{make.__name__}({', '.join(inner)})" if inner else make.__name__
        object.__setattr__(recipe, "recipe_name", name)  # its fields are frozen
        return recipe

    return made
