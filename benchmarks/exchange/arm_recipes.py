"""Recipes by the names of benchmarks' arms: "hitopk", and "torus2d-fp16" for values that travel in 16 bits."""

from __future__ import annotations

import inspect
from typing import Any

import hvd_sparse as hvd
from hvd_sparse.aggregators import Aggregator

FP16 = "-fp16"


def recipe(name: str, density: float) -> Aggregator:
    """The recipe of `hvd.recipes` that an arm's name stands for, with a density if it takes one.

    Raises:
        ValueError: if there is no such recipe.
    """
    maker = getattr(hvd.recipes, in_full(name), None)
    if not inspect.isfunction(maker):
        raise ValueError(f"Expected the name of a recipe of hvd.recipes, also with {FP16!r}, got {name!r}.")
    options: dict[str, Any] = {"wire_dtype": "float16"} if sends_halves(name) else {}
    return maker(density, **options) if "density" in inspect.signature(maker).parameters else maker(**options)


def in_full(name: str) -> str:
    """The arm's name without `FP16`."""
    return name.removesuffix(FP16)


def sends_halves(name: str) -> bool:
    """Whether values travel as float16 in an arm of this name, ours or Horovod's."""
    return name.endswith(FP16)
