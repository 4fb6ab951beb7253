"""Small variables that are sent in full."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.aggregators import DenseBelow
from hvd_sparse.exchange.gradients import GradientExchange
from tests import threads

SHAPES = {"kernel": (20, 10), "bias": (10,), "gamma": (10,), "matrix": (15, 10)}


def gradients(rank, step):
    random = np.random.default_rng([rank, step])
    return [tf.constant(random.integers(-8, 9, shape) * 4, tf.float32) for shape in SHAPES.values()]


def variables():
    return [keras.Variable(np.zeros(shape, "f4"), name=name) for name, shape in SHAPES.items()]


@pytest.mark.parametrize(
    "make",
    [
        lambda: hvd.recipes.dense_below(hvd.recipes.hitopk(0.1), 100),
        lambda: hvd.recipes.dense_below(hvd.recipes.warmup(hvd.recipes.hitopk(0.1), 1, [0.5]), 100),
        lambda: hvd.recipes.warmup(hvd.recipes.dense_below(hvd.recipes.hitopk(0.1), 100), 1, [0.5]),
    ],
    ids=["alone", "around a warm-up", "in a warm-up"],
)
def test_small_variables_get_the_mean_and_the_others_keep_a_residual(make):
    def one_rank(grid):
        exchange = GradientExchange(make(), "below")
        exchange.grid = lambda: grid
        own = variables()
        means = [exchange(gradients(grid.world.rank, step), own) for step in range(3)]
        return [[each.numpy() for each in step] for step in means], exchange.residual_sum().residuals

    ran = threads.run(4, 2, one_rank)
    for step in range(3):
        expected = [sum(each) / 4 for each in zip(*(gradients(rank, step) for rank in range(4)), strict=True)]
        for name, mean, whole in zip(SHAPES, ran[0][0][step], expected, strict=True):
            assert np.array_equal(mean, whole) == (name in ("bias", "gamma"))
    came_out = {name: 4 * sum(step[place] for step in ran[0][0]) for place, name in enumerate(SHAPES)}
    for place, name in enumerate(SHAPES):
        went_in = sum(gradients(rank, step)[place] for rank in range(4) for step in range(3))
        np.testing.assert_array_equal(came_out[name] + ran[0][1].get(name, 0.0), went_in)


@pytest.mark.parametrize("around", [hvd.recipes.momentum_corrected, hvd.recipes.updates])
def test_the_optimizer_keeps_what_it_remembers_of_small_variables(around):
    """All elements are sent, so that updates equal those of the plain optimizer."""
    recipe = around(hvd.recipes.dense_below(hvd.recipes.topk(1.0), 100))
    own, plain = variables(), variables()
    optimizers = [
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, 0.5), aggregator=recipe),
        keras.optimizers.SGD(0.5, 0.5),
    ]
    for step in range(3):
        for optimizer, moved in zip(optimizers, (own, plain), strict=True):
            optimizer.apply(gradients(0, step), moved)
    for one, other in zip(own, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    planned = optimizers[0].exchange.planned
    assert planned.taking_over == {"kernel", "matrix"}
    assert [sorted(segment.name for segment in bucket.segments) for bucket in planned.plan.buckets] in (
        [["kernel", "matrix"], ["bias", "gamma"]],
        [["bias", "gamma"], ["kernel", "matrix"]],
    )


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda: hvd.recipes.dense_below(hvd.recipes.topk(0.1), 0), "at least 1, got 0"),
        (lambda: hvd.recipes.dense_below(hvd.recipes.dense()), "AllReduce sends all of each variable"),
        (lambda: DenseBelow(hvd.recipes.topk(0.1), 10, hvd.recipes.topk(0.1)), "Expected a dense recipe"),
    ],
)
def test_what_cannot_be_is_refused(make, told):
    with pytest.raises(ValueError, match=told):
        make()
