"""SparCML's Algorithm 1 in NumPy, compared with recipes with `as_published` on ranks that are threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import recipes
from hvd_sparse.aggregators import Aggregator, Hierarchical, SparCMLAlgorithm1
from hvd_sparse.compression.quantizers import QSGD
from hvd_sparse.spec import Spec
from hvd_sparse.transport.communicator import Grid
from tests import simulation, threads
from tests.gpu import reference
from tests.ops import quantize_reference
from tests.simulation import same_bits

SIZE = 120
HALVING = (0.25, 0.25, 0.125, 0.125, 0.0625, 0.0625)  # powers of two: alpha * g / alpha equals g exactly
UNEVEN = (0.1, 0.1, 0.07, 0.03, 0.03, 0.001)


class Case(NamedTuple):
    """A recipe, and its TopK and Q in NumPy."""

    make: Callable[..., Aggregator]
    select: Callable[[np.ndarray], np.ndarray]
    bits: int | None


CASES = {
    "top-k": Case(lambda **how: recipes.sparcml(0.1, **how), lambda acc: reference.exact(acc, 12), None),
    "top-k, 4 bits": Case(lambda **how: recipes.sparcml(0.1, bits=4, **how), lambda acc: reference.exact(acc, 12), 4),
    "2 of 16, 8 bits": Case(
        lambda **how: recipes.sparcml_buckets(2, 16, bits=8, **how),
        lambda acc: simulation.bucketed(2, 16)(acc, 0, 0),
        8,
    ),
}


def gradient(rank, model):
    """The float32 gradient of a rank's least-squares problem at a model."""
    random = np.random.default_rng(rank)
    rows, wanted = random.standard_normal((20, SIZE)).astype(np.float32), random.standard_normal(20).astype(np.float32)
    return rows.T @ (rows @ model - wanted) / np.float32(20)


def algorithm_1(case, ranks, rates):
    """The models v_1, v_2, ... and the last errors eps [P, d]: SparCML's Algorithm 1 line by line, in float32."""
    model, errors, models = np.zeros(SIZE, np.float32), np.zeros((ranks, SIZE), np.float32), []
    for step, alpha in enumerate(np.float32(rates)):
        summed = np.zeros(SIZE, np.float32)
        for rank in range(ranks):
            acc = errors[rank] + alpha * gradient(rank, model)
            chosen = case.select(acc)
            errors[rank] = acc
            errors[rank][chosen] = 0  # acc - TopK(acc)
            summed[chosen] += quantized(acc[chosen], case.bits, step + (rank << 48))
        model = model - summed
        models.append(model)
    return models, errors


def quantized(values, bits, seed):
    """Q: stochastic rounding by QSGD, whose error is discarded."""
    return values if bits is None else quantize_reference.reference(values, seed, QSGD(bits))[2]


def train(case, ranks, rates):
    """The models of all ranks by the library, [P, steps, d], and their final accumulators, [P, d]."""
    recipe = case.make(as_published=True, collective="split_allgather")

    def one_rank(grid):
        rate = tf.Variable(rates[0])
        state = recipe.init(Spec(SIZE, grid, learning_rate=lambda: rate))
        model, models = np.zeros(SIZE, np.float32), []
        for alpha in rates:
            rate.assign(alpha)
            move = recipe.aggregate(tf.constant(gradient(grid.world.rank, model)), state).numpy()
            model = model - np.float32(alpha) * move  # plain SGD
            models.append(model)
        return np.stack(models), recipe.inner.residual(state.inner).numpy()

    models, errors = zip(*threads.run(ranks, 1, one_rank), strict=True)
    return np.stack(models), np.stack(errors)


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("name", CASES)
def test_training_is_the_papers_to_the_bit(name, ranks):
    models, errors = train(CASES[name], ranks, HALVING)
    expected, expected_errors = algorithm_1(CASES[name], ranks, HALVING)
    for rank in range(ranks):
        same_bits(models[rank], np.stack(expected))
    np.testing.assert_array_equal(errors, expected_errors)


@pytest.mark.parametrize("name", CASES)
def test_at_any_learning_rate_it_is_the_papers_but_for_the_rounding_of_a_division(name):
    models, _ = train(CASES[name], 3, UNEVEN)
    expected, _ = algorithm_1(CASES[name], 3, UNEVEN)
    np.testing.assert_allclose(models[0], np.stack(expected), rtol=0, atol=1e-6 * np.abs(expected).max())
    for other in models[1:]:
        same_bits(other, models[0])


def test_it_is_not_what_the_recipe_does_by_default():
    """By default, the mean of gradients is returned, whatever the learning rate was when they were computed."""
    case = CASES["top-k"]
    published, _ = train(case, 2, UNEVEN)
    recipe = case.make(collective="split_allgather")

    def one_rank(grid):
        state, model = recipe.init(Spec(SIZE, grid)), np.zeros(SIZE, np.float32)
        for alpha in UNEVEN:
            mean = recipe.aggregate(tf.constant(gradient(grid.world.rank, model)), state).numpy()
            model = model - np.float32(2 * alpha) * mean  # the sum of two ranks
        return model

    assert np.abs(threads.run(2, 1, one_rank)[0] - published[0, -1]).max() > 1e-3


def test_a_learning_rate_of_zero_moves_nothing_and_loses_nothing():
    recipe = CASES["top-k, 4 bits"].make(as_published=True)
    rate = tf.Variable(0.5)
    state = recipe.init(Spec(SIZE, Grid.lone(), learning_rate=lambda: rate))
    recipe.aggregate(tf.constant(gradient(0, np.zeros(SIZE, np.float32))), state)
    before = [variable.numpy() for variable in state.variables]
    rate.assign(0.0)
    assert not recipe.aggregate(tf.constant(gradient(1, np.zeros(SIZE, np.float32))), state).numpy().any()
    for variable, value in zip(state.variables, before, strict=True):
        same_bits(variable.numpy(), value)
    rate.assign(0.5)
    assert recipe.aggregate(tf.zeros([SIZE]), state).numpy().any()


def test_the_residual_goes_over_to_another_recipe_as_it_would_have_moved_the_model():
    """Flushed into a dense exchange at the same learning rate, eps moves the model by the sum of eps."""
    published = recipes.sparcml(0.1, as_published=True, collective="split_allgather")
    recipe = recipes.schedule([(0, published), (1, recipes.dense())])

    def one_rank(grid):
        state = recipe.init(Spec(SIZE, grid, learning_rate=lambda: 0.25))
        recipe.set_epoch(state, 0)
        recipe.aggregate(tf.constant(gradient(grid.world.rank, np.zeros(SIZE, np.float32))), state)
        eps = published.inner.residual(state.levels[0].inner).numpy()
        recipe.set_epoch(state, 1)
        return eps, recipe.aggregate(tf.zeros([SIZE]), state).numpy()

    eps, moves = zip(*threads.run(4, 2, one_rank), strict=True)
    np.testing.assert_allclose(0.25 * moves[0], np.sum(eps, axis=0), rtol=1e-6, atol=1e-7)
    assert np.sum(eps, axis=0).any()


def test_what_a_checkpoint_put_back_is_owed():
    recipe = recipes.sparcml(0.1, as_published=True, collective="split_allgather")
    kept = 8 * np.round(np.random.default_rng(0).normal(0, 4, SIZE))

    def one_rank(grid):
        state = recipe.init(Spec(SIZE, grid, learning_rate=lambda: 0.5))
        recipe.restore(state, tf.constant(kept, tf.float32))
        return recipe.residual(state).numpy()

    np.testing.assert_array_equal(np.sum(threads.run(4, 1, one_rank), axis=0), kept)


def test_without_an_optimizer_it_is_refused_in_words():
    with pytest.raises(ValueError, match="no optimizer to get it from.*hvd.DistributedOptimizer.*learning_rate=lambda"):
        recipes.sparcml(0.1, as_published=True).init(Spec(SIZE, Grid.lone()))


def test_it_is_outermost():
    with pytest.raises(ValueError, match="SparCMLAlgorithm1 cannot work inside Hierarchical"):
        Hierarchical(recipes.sparcml(0.1, as_published=True))
    for inner in (recipes.dense(), recipes.sparcml(0.1, as_published=True)):
        with pytest.raises(ValueError, match=f"has a residual.*got {type(inner).__name__}"):
            SparCMLAlgorithm1(inner)
