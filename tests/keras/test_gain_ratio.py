"""The gain ratio of the nodes' gradients, which scales the updates of optimizers that divide by their size."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import hvd_sparse as hvd
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.gain_ratio import LEAST, SAMPLE, GainRatio
from hvd_sparse.compression.selectors import TopK
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.servers import local
from hvd_sparse.spec import Spec
from tests import threads
from tests.keras.test_local_updates import distributed


def estimated(steps):
    """The gain ratio after exchanges of these gradients, [exchanges, nodes, size] float32."""
    _, nodes, size = steps.shape
    gains = [GainRatio(Spec(size, grid)) for grid in threads.grids(nodes, 1)]
    for gradients in steps:
        reports = [gain.report(tf.constant(own[None])) for gain, own in zip(gains, gradients, strict=True)]
        for gain in gains:
            for variable, value in gain.absorbed(tf.add_n(reports) / float(nodes)):
                variable.assign(value)
    (ratio,) = {float(gain.value()) for gain in gains}  # the same on all nodes
    return ratio


def noise(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_it_is_one_before_the_first_exchange_and_where_gradients_are_zero():
    assert estimated(np.zeros([0, 3, 8], np.float32)) == 1.0
    assert estimated(np.zeros([2, 3, 8], np.float32)) == 1.0


@given(st.integers(1, 6), st.integers(1, 2 * SAMPLE), st.integers(0, 9))
def test_nodes_that_agree_have_none(nodes, size, seed):
    assert estimated(np.repeat(noise(seed, 3, 1, size), nodes, axis=1)) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("nodes, share", [(2, 0.0), (2, 1.0), (4, 0.25), (7, 0.0)])
def test_it_is_the_ratio_of_variances_of_signal_and_noise(nodes, share):
    """With a signal of variance s that all nodes share, and noise of variance 1: (s + 1) / (s + 1 / nodes)."""
    signal, own = noise(0, 320, 1, 10 * SAMPLE), noise(1, 320, nodes, 10 * SAMPLE)
    expected = (share + 1.0) / (share + 1.0 / nodes)
    assert estimated(np.sqrt(np.float32(share)) * signal + own) == pytest.approx(expected, rel=0.05)


@given(st.integers(1, 6), st.integers(0, 99), st.floats(-1.0, 1.0))
def test_it_lies_between_one_and_the_number_of_nodes(nodes, seed, shared):
    """Also if the nodes' gradients cancel each other."""
    own = noise(seed, 1, nodes, 5)
    ratio = estimated(own - np.float32(shared) * own.mean(axis=1, keepdims=True))
    assert 1.0 <= ratio <= nodes


@given(st.integers(-30, 30), st.integers(0, 9))
def test_it_does_not_depend_on_the_scale(power, seed):
    own = noise(seed, 2, 3, 40)
    assert estimated(own * np.float32(2.0) ** power) == estimated(own)


def test_squares_that_overflow_change_nothing():
    own = noise(0, 3, 2, 10)
    own[2] *= np.float32(1e30)
    assert estimated(own) == estimated(own[:2])


def made(recipe, optimizer=keras.optimizers.Adam, size=40, spoilt=None):
    """A function that trains for three steps, and returns the weights, the state and the bytes to other nodes."""

    def one_rank(grid):
        telemetry = hvd.Telemetry()
        run = distributed(optimizer(0.01), recipe, grid, name="gain", telemetry=telemetry)
        variable = keras.Variable(np.ones(size, "f4"), name="v")
        for step in range(3):
            run.apply([tf.constant(noise([grid.world.rank, step], size))], [variable])
        if spoilt is not None:
            before = [each.numpy() for state in run.exchange.states for each in state.variables]
            bad = np.full(size, np.nan if grid.world.rank == spoilt else 1.0, "f4")
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {spoilt}"):
                run.apply([tf.constant(bad)], [variable])
            after = [each.numpy() for state in run.exchange.states for each in state.variables]
            assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
        gains = [part for state in run.exchange.states for part in state.submodules if isinstance(part, GainRatio)]
        return variable.numpy(), gains, telemetry.total_bytes_across

    return one_rank


RECIPES = {
    "hitopk": hvd.recipes.hitopk,
    "topk": hvd.recipes.topk,
    "sparcml": lambda density: hvd.recipes.sparcml(density, collective="allgather"),
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("density", [0.1, 1.0])
def test_all_recipes_measure_it_and_count_its_bytes(name, density):
    """Adam's updates of nodes that agree on nothing grow; the report is an all-reduce among the senders."""
    ranks = 2 if name == "hitopk" else 1  # of a node
    senders = 4 // ranks
    plain = threads.run(4, ranks, made(hvd.recipes.updates(RECIPES[name](density))))
    scaled = threads.run(4, ranks, made(hvd.recipes.updates(RECIPES[name](density), gain_ratio=True)))
    assert len({weights.tobytes() for weights, _, _ in scaled}) == 1
    assert np.abs(scaled[0][0] - 1).sum() > 1.05 * np.abs(plain[0][0] - 1).sum()
    report = 4 * (min(LEAST, 40 // ranks) + 1)
    for (_, _, before), (_, (gain,), after) in zip(plain, scaled, strict=True):
        assert after - before == 3 * (2 * (senders - 1) * report // senders)
        assert int(gain.step) == 3 and 1.0 < float(gain.value()) <= senders


@pytest.mark.parametrize("kind", [keras.optimizers.SGD, lambda rate: keras.optimizers.SGD(rate, 0.9, True)])
def test_optimizers_that_are_linear_in_the_gradient_need_none(kind):
    recipe = hvd.recipes.hitopk(0.1)
    plain = threads.run(4, 2, made(hvd.recipes.updates(recipe), kind))
    scaled = threads.run(4, 2, made(hvd.recipes.updates(recipe, gain_ratio=True), kind))
    for (weights, none, across), (others, gains, bytes_across) in zip(plain, scaled, strict=True):
        assert none == gains == [] and across == bytes_across
        np.testing.assert_array_equal(weights, others)


def test_a_single_node_has_none():
    for _, gains, _ in threads.run(3, 3, made(hvd.recipes.updates(hvd.recipes.hitopk(0.1), gain_ratio=True))):
        assert gains == []


@pytest.mark.parametrize("size", [40, 4])  # in shards of two, 4 elements leave none for the last of three ranks
def test_a_step_that_fails_leaves_it_as_it_was(size):
    recipe = hvd.recipes.updates(hvd.recipes.hitopk(0.4), gain_ratio=True)
    threads.run(6, 3, made(recipe, size=size, spoilt=4))


def test_auto_passes_it_to_all_candidates():
    recipe = hvd.recipes.updates(hvd.recipes.auto(0.01), gain_ratio=True)

    def senders(part):
        if isinstance(part, LocalUpdates):
            return [part]
        inner = [getattr(part, name) for name in ("inner", "compressor") if hasattr(part, name)]
        return [found for each in inner for found in senders(each)]

    assert all(sender.gain_ratio for _, candidate in recipe.candidates for sender in senders(candidate))
    assert all(senders(candidate) for _, candidate in recipe.candidates)


def test_recommended_has_it_for_any_number_of_nodes():
    recipe = hvd.recipes.hitopk(0.02, seed=3)
    (_, few), (_, many) = hvd.recipes.recommended(0.02, seed=3).choices
    assert few == hvd.recipes.updates(recipe, ahead=True, gain_ratio=True)
    assert many == hvd.recipes.updates(hvd.recipes.blocks(2, seed=3), ahead=True, gain_ratio=True)


@pytest.mark.parametrize("size, sample", [(3, 3), (16, 16), (40_000, 16), (100_000, 39), (10**6, 256), (10**8, 256)])
def test_the_sample_is_small_beside_what_recommended_sends(size, sample):
    """Two thirds of a bit for each element to owners and back, as is the all-reduce of the sample and one number."""
    (grid, *_) = threads.grids(4, 1)
    gain = GainRatio(Spec(size, grid))
    assert gain.sample == sample
    assert size < 42_500 or 32 * (sample + 1) <= 0.02 * 2 / 3 * size * 1.01


def test_clients_of_servers_refuse_it():
    with pytest.raises(ValueError, match="leave gain_ratio=True out of LocalUpdates"):
        local.check(keras.optimizers.Adam(0.1), LocalUpdates(ErrorFeedback(TopK(0.1)), gain_ratio=True))
