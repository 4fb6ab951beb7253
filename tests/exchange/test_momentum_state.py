"""Momentum kept by an exchange, carried over to another number of ranks."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import recipes
from hvd_sparse.compression.momentum import VELOCITY
from hvd_sparse.exchange import state
from hvd_sparse.exchange.plan import make_plan
from hvd_sparse.exchange.planned import PlannedExchange
from hvd_sparse.spec import Momentum, MomentumRule
from tests import threads

SHAPES = {"matrix": (8, 5), "bias": (7,), "vector": (60,)}
RECIPES = {
    "hitopk": recipes.momentum_corrected(recipes.hitopk(0.1)),
    "topk": recipes.momentum_corrected(recipes.topk(0.1)),
    "sparcml": recipes.momentum_corrected(recipes.sparcml(0.1, collective="dynamic")),
    "warmup": recipes.warmup(recipes.momentum_corrected(recipes.hitopk(0.1)), 3, [0.25]),
}


def planned(recipe, grid, gathered=dict):
    """Several buckets, so that each of them has shards."""
    gradients = {name: tf.zeros(shape) for name, shape in SHAPES.items()}
    momentum = Momentum(lambda: MomentumRule(0.5), gathered)
    return PlannedExchange(recipe, make_plan(gradients, SHAPES, 200, 100), grid, "moving", None, momentum=momentum)


def gradients(rank, step):
    random = np.random.default_rng([rank, step])
    return {name: tf.constant(random.integers(-8, 9, shape) * 24.0, tf.float32) for name, shape in SHAPES.items()}


def trained(recipe, ranks, local_size):
    """The mean momentum after three steps, and the sum of the residuals, the same on every rank."""

    def one_rank(grid):
        exchange = planned(recipe, grid)
        for step in range(3):
            exchange.exchange(gradients(grid.world.rank, step))
        return state.slots(exchange)[VELOCITY], state.residual_sum(exchange)

    return threads.run(ranks, local_size, one_rank)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("ranks, local_size", [(1, 1), (4, 2), (6, 3)])
def test_its_mean_goes_on_whatever_the_number_of_ranks(name, ranks, local_size):
    found = trained(RECIPES[name], 4, 2)
    momenta, total = found[0]
    assert all((momenta[each] == other[0][each]).all() for other in found for each in SHAPES)
    assert any(value.any() for value in momenta.values())

    def one_rank(grid):
        # Only rank 0 has read the file.
        exchange = planned(RECIPES[name], grid, lambda: {VELOCITY: momenta} if grid.world.rank == 0 else {})
        state.begin(exchange, (total, None))
        return state.slots(exchange)[VELOCITY]

    for each in threads.run(ranks, local_size, one_rank):
        for variable in SHAPES:
            np.testing.assert_allclose(each[variable], momenta[variable], rtol=1e-6)


def test_the_state_of_a_rank_goes_before_what_the_optimizer_has():
    def one_rank(grid):
        recipe = RECIPES["hitopk"]
        first = planned(recipe, grid)
        first.exchange(gradients(grid.world.rank, 0))
        second = planned(recipe, grid, lambda: {VELOCITY: {name: np.ones(shape) for name, shape in SHAPES.items()}})
        state.begin(second, (state.residual_sum(first), state.rank_state(first)))
        return state.slots(first)[VELOCITY], state.slots(second)[VELOCITY]

    for one, other in threads.run(4, 2, one_rank):
        for name in SHAPES:
            np.testing.assert_array_equal(one[name], other[name])


def test_without_momentum_correction_the_optimizer_is_not_asked():
    def asked():
        raise AssertionError("it is the optimizer's own matter")

    def one_rank(grid):
        exchange = planned(recipes.hitopk(0.1), grid, asked)
        state.begin(exchange, None)
        return state.slots(exchange)

    assert threads.run(4, 2, one_rank) == [{}] * 4
