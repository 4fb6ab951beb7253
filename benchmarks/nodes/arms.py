"""The recipes that the study of many nodes compares."""

from __future__ import annotations

import functools

from hvd_sparse import recipes
from hvd_sparse.aggregators import Aggregator


def _updates(recipe: Aggregator) -> Aggregator:
    return recipes.updates(recipe, ahead=True, gain_ratio=True)


ARMS = {
    "dense": recipes.dense,
    "recommended": recipes.recommended,
    "largest": lambda: _updates(recipes.hitopk(0.01)),  # what `recommended` is on two nodes
    "blocks": lambda: _updates(recipes.blocks(3, 2)),  # and on more
    "blocks2": lambda: _updates(recipes.blocks(2, 2)),
    "blocks6": lambda: _updates(recipes.blocks(6, 2)),
}


@functools.cache
def made(arm: str) -> Aggregator:
    """The recipe of an arm."""
    return ARMS[arm]()
