"""The default recipe: which way it takes on which grid; its result equals that way's bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import recipes
from hvd_sparse.aggregators import Hierarchical
from hvd_sparse.spec import Spec
from tests import threads

SIZE = 1001
WAYS = [(1, 1, "dense"), (4, 4, "dense"), (4, 1, "dense"), (4, 2, "torus2d"), (6, 3, "torus2d"), (6, 2, "torus2d")]


def exchanged(recipe, ranks, local_size):
    """Each rank's mean, and the bytes that it sent to each other rank for it."""

    def rank(grid):
        drawn = np.random.default_rng(grid.world.world_rank).standard_normal(SIZE, np.float32)
        state = recipe.init(Spec(SIZE, grid))
        agreed = threads.sent(grid)
        mean = recipe.aggregate(tf.constant(drawn), state).numpy()
        return mean, {to: count - agreed.get(to, 0) for to, count in threads.sent(grid).items()}

    return threads.run(ranks, local_size, rank)


@pytest.mark.parametrize("ranks, local_size, way", WAYS)
def test_the_way_follows_from_the_grid(ranks, local_size, way):
    ours = exchanged(recipes.mean(), ranks, local_size)
    theirs = exchanged(getattr(recipes, way)(), ranks, local_size)
    for (mean, sent), (expected, expected_sent) in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mean, expected)
        assert sent == expected_sent


def test_it_cannot_be_inside_of_what_looks_for_nodes():
    with pytest.raises(ValueError, match="Mean cannot work inside Hierarchical"):
        Hierarchical(recipes.mean())
