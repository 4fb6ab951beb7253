"""Density warm-up: properties not covered by the table of recipes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import recipes
from hvd_sparse.aggregators import Warmup
from hvd_sparse.spec import Spec
from hvd_sparse.transport.communicator import Grid
from tests import threads

SIZE = 60


def vector(rank, step):
    """Small integers, so that sums in any order are equal."""
    return np.random.default_rng([rank, step]).integers(-8, 9, SIZE).astype(np.float32)


def trained(recipe, ranks, local_size, steps):
    """For each rank: the means, the numbers of selected elements, the bytes across, and the residuals, by step."""

    def one_rank(grid):
        state = recipe.init(Spec(SIZE, grid))
        found = []
        for step in range(steps):
            mine = tf.constant(vector(grid.world.rank, step))
            told = recipe.exchange(mine, state).metrics
            mean = recipe.aggregate(mine, state).numpy()
            counts = int(told["selected"]), int(told["bytes_across"])
            found.append((mean, *counts, recipe.residual(state).numpy()))
        return found

    return threads.run(ranks, local_size, one_rank)


@pytest.mark.parametrize("make", [recipes.topk, recipes.hitopk, recipes.mstopk], ids=["topk", "hitopk", "mstopk"])
@pytest.mark.parametrize("ranks, local_size", [(1, 1), (4, 2), (6, 3)])
def test_dense_steps_come_first_and_are_the_dense_mean(make, ranks, local_size):
    recipe = recipes.warmup(make(0.1), 2, [0.5], dense_steps=2)
    shard = SIZE // (local_size if make is recipes.hitopk else 1)
    for found in trained(recipe, ranks, local_size, 5):
        for step in range(2):
            expected = np.sum([vector(rank, step) for rank in range(ranks)], axis=0, dtype=np.float32) / ranks
            np.testing.assert_array_equal(found[step][0], expected.astype(np.float32))
            assert not found[step][3].any()
        assert [selected for _, selected, _, _ in found] == [shard, shard, shard // 2, shard // 2, shard // 10]


def test_dense_steps_cost_what_an_all_reduce_costs():
    sparse = recipes.warmup(recipes.hitopk(0.1), 1, [], dense_steps=1)
    for found, dense in zip(
        trained(sparse, 4, 2, 1), trained(recipes.warmup(recipes.topk(0.1), 1, [], 1), 4, 1, 1), strict=True
    ):
        assert found[0][2] == 2 * 1 * (SIZE // 2) * 4 // 2  # of the shard, between two nodes
        assert dense[0][2] == 2 * 3 * SIZE * 4 // 4


def test_nothing_is_lost_from_stage_to_stage():
    recipe = recipes.warmup(recipes.hitopk(0.02), 2, [0.3, 0.1], dense_steps=1)
    found = trained(recipe, 4, 2, 7)
    went_in = np.sum([vector(rank, step) for rank in range(4) for step in range(7)], axis=0)
    came_out = 4 * np.sum([mean for mean, *_ in found[0]], axis=0)
    left = np.sum([rank[-1][3] for rank in found], axis=0)
    np.testing.assert_array_equal(came_out + left, went_in)


def test_momentum_goes_through_the_stages():
    """Dense steps with momentum, then sparse ones at density 1: without masking, momentum is continuous."""
    recipe = recipes.warmup(recipes.momentum_corrected(recipes.topk(1.0), 0.5), 1, [], dense_steps=2)
    velocity = np.zeros(SIZE, np.float32)
    for step, (mean, *_) in enumerate(trained(recipe, 2, 1, 4)[0]):
        velocity = np.float32(0.5) * velocity + (vector(0, step) + vector(1, step))
        np.testing.assert_array_equal(mean, velocity / 2)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: recipes.sparcml(0.05), id="sparcml", marks=pytest.mark.thorough),
        pytest.param(lambda: recipes.sparcml(0.05, bits=4), id="sparcml, 4 bits"),
        pytest.param(lambda: recipes.sparcml_buckets(2, 20, bits=None), id="buckets", marks=pytest.mark.thorough),
        pytest.param(lambda: recipes.auto(0.05, ["topk"]), id="auto"),
    ],
)
def test_every_sparse_recipe_can_have_it(make):
    recipe = recipes.warmup(make(), 1, [0.25])
    found = trained(recipe, 4, 2, 3)
    went_in = np.sum([vector(rank, step) for rank in range(4) for step in range(3)], axis=0)
    came_out = 4 * np.sum([mean for mean, *_ in found[0]], axis=0)
    left = np.sum([rank[-1][3] for rank in found], axis=0)
    np.testing.assert_allclose(came_out + left, went_in, atol=1e-4)
    assert found[0][0][1] > found[0][2][1]


def test_in_a_graph_the_stage_follows_the_steps():
    recipe = recipes.warmup(recipes.topk(0.1), 1, [0.5])
    state = recipe.init(Spec(SIZE, Grid.lone()))
    graph = tf.function(lambda rows: recipe.aggregate(rows, state))
    counts = [np.count_nonzero(graph(tf.range(1.0, SIZE + 1))) for _ in range(3)]
    assert counts == [SIZE // 2, SIZE // 10, SIZE // 10]
    assert recipe.running(state)[0] == recipe.inner


@pytest.mark.parametrize(
    "stages, told",
    [((), "at least one stage"), (((0, 0.5),), "at least one step each"), (((5, 1.5),), r"density in \(0, 1\]")],
)
def test_refuses_stages_that_cannot_be(stages, told):
    with pytest.raises(ValueError, match=told):
        Warmup(recipes.topk(0.1), stages)


def test_a_stage_is_a_tenth_of_the_training_unless_it_is_said():
    assert recipes.warmup(recipes.topk(0.1), steps=50) == recipes.warmup(recipes.topk(0.1), 5)
    assert recipes.warmup(recipes.topk(0.1), 7, steps=50) == recipes.warmup(recipes.topk(0.1), 7)
    with pytest.raises(ValueError, match="stage_steps, or steps, .* got neither"):
        recipes.warmup(recipes.topk(0.1))


def test_refuses_what_has_no_density():
    with pytest.raises(ValueError, match="sends all of the gradient, and so needs no warm-up"):
        recipes.warmup(recipes.torus2d(), 10)
    schedule = recipes.schedule([(0, recipes.topk(0.1)), (1, recipes.dense())])
    with pytest.raises(TypeError, match="Schedule has no density: set it for each recipe in it"):
        recipes.warmup(schedule, 10)
