"""The axis of recipes: how each is made, and what it applies to the weights when nothing waits to be sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hvd_sparse import recipes
from hvd_sparse.aggregators import Aggregator

SOME = 0.25
GRADIENTS, UPDATES, LOCAL = "the mean gradient", "the mean of the nodes' updates", "nodes that train on their own"
EVERY = 2  # steps from one exchange to the next, where a recipe has such a number


@dataclasses.dataclass(frozen=True)
class Row:
    """A recipe.

    Attributes:
        make: makes it from its density.
        applies: what it applies if everything is sent.
        flat: whether each rank is a node of its own.
        lossy: whether it can keep something back; a density of 1 sends all of it.
        corrects: whether it takes over the optimizer's momentum.
    """

    make: Callable[[float], Aggregator]
    applies: str = GRADIENTS
    flat: bool = False
    lossy: bool = True
    corrects: bool = False


def _updates(density: float) -> Aggregator:
    return recipes.updates(recipes.hitopk(density))


def _blocks(density: float) -> Aggregator:
    return recipes.blocks(round(1.0 / density), None if density == 1.0 else 2)


RECIPES = {
    "dense": Row(lambda density: recipes.dense(), lossy=False),
    "torus2d": Row(lambda density: recipes.torus2d(), lossy=False),
    "topk": Row(recipes.topk),
    "hitopk": Row(recipes.hitopk),
    "sparcml": Row(lambda density: recipes.sparcml(density, collective="split_allgather")),
    "blocks": Row(_blocks),
    "corrected": Row(
        lambda density: recipes.momentum_corrected(recipes.hitopk(density), masking=density < 1.0), corrects=True
    ),
    "updates": Row(_updates, UPDATES),
    "updates_blocks": Row(lambda density: recipes.updates(_blocks(density), ahead=True), UPDATES),
    "updates_topk": Row(lambda density: recipes.updates(recipes.topk(density)), UPDATES, flat=True),
    "recommended": Row(lambda density: recipes.recommended(density), UPDATES),
    "diloco": Row(lambda density: recipes.diloco(EVERY), LOCAL, lossy=False),
    "warmup": Row(lambda density: recipes.warmup(recipes.hitopk(density), 2, [0.5] if density < 1.0 else [1.0])),
    "schedule": Row(lambda density: recipes.schedule([(0, recipes.hitopk(density)), (1, recipes.torus2d())])),
    "dense_below": Row(lambda density: recipes.dense_below(recipes.hitopk(density), 8)),
    "auto": Row(lambda density: recipes.auto(density, ["dense"], budget=0.0), lossy=False),
}
