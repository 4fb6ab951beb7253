"""Ranks that send different numbers of elements in the same step: none, half of k, or twice k."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.aggregators import Compressed, Hierarchical
from hvd_sparse.compression.base import Compressor, Selection
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.quantizers import QSGD, OneBit, TwoBits
from hvd_sparse.compression.selectors import Quantized
from hvd_sparse.spec import Segment, Spec
from tests import threads

SIZE, KEPT, STEPS = 96, 6, 5
SEGMENTS = (Segment("kernel", (2, 5, 7)), Segment("bias", (7,)), Segment("wide", (1, 19)))
QUANTIZERS = [QSGD(4, bucket=4), OneBit("threshold"), OneBit("column"), OneBit("global"), TwoBits()]
KINDS = {
    "flat": Compressed,
    "hierarchical": lambda compressor: Hierarchical(Compressed(compressor)),
}


class State(tf.Module):
    def __init__(self, spec):
        super().__init__()
        self.spec = spec


def share(rank, size):
    """The number of elements that a rank sends."""
    return min(size, (0, KEPT // 2, 2 * KEPT)[rank % 3])


@dataclasses.dataclass(frozen=True)
class Uneven(Compressor):
    """Selects the largest elements of the sum, a different number on each rank; `about` is the expected number."""

    wire_dtype: str = "float32"
    about: int | None = None
    counts_differ = True

    def expected(self, size):
        return self.about

    def create(self, spec):
        return State(spec)

    def count(self, size):
        return None

    def at_density(self, density):
        return self

    def compress(self, parts, state, residual=None):
        total, culprit = ops.sum_parts(parts)
        total = total if residual is None else total + residual
        kept = share(state.spec.grid.world.rank, state.spec.size)
        indices = tf.sort(tf.math.top_k(tf.abs(total), kept).indices)
        values = tf.cast(tf.gather(total, indices), self.wire_dtype)
        rest = tf.tensor_scatter_nd_sub(total, indices[:, tf.newaxis], tf.cast(values, tf.float32))
        return Selection(tf.IndexedSlices(values, indices, tf.constant([state.spec.size])), rest, culprit)


def drawn(rank, step):
    return np.random.default_rng([rank, step]).standard_normal(SIZE).astype(np.float32)


def sent_and_left(total, kept):
    sent = np.zeros_like(total)
    chosen = np.argsort(-np.abs(total), kind="stable")[:kept]
    sent[chosen] = total[chosen]
    return sent, total - sent


def simulated(ranks, local_size, kind):
    """The means of each step, in NumPy."""
    shards = local_size if kind == "hierarchical" else 1
    assert ranks % shards == 0
    length = SIZE // shards
    left = np.zeros((ranks, length), np.float32)
    means = []
    for step in range(STEPS):
        mean = np.zeros(SIZE, np.float32)
        for rank in range(ranks):
            local = rank % shards
            place = slice(local * length, (local + 1) * length)
            members = [drawn(rank - local + each, step)[place] for each in range(shards)]
            sent, left[rank] = sent_and_left(left[rank] + sum(members), share(rank, length))
            mean[place] += sent
        means.append(mean / np.float32(ranks))
    return means


@pytest.mark.parametrize("about", [None, KEPT])
@pytest.mark.parametrize("ranks, local_size", [(3, 1), (4, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_means_are_those_of_what_each_has_sent(kind, ranks, local_size, about):
    recipe = KINDS[kind](ErrorFeedback(Uneven(about=about)))

    def one_rank(grid):
        state = recipe.init(Spec(SIZE, grid))
        return [recipe.aggregate(tf.constant(drawn(grid.world.rank, step)), state).numpy() for step in range(STEPS)]

    for found in threads.run(ranks, local_size, one_rank):
        np.testing.assert_allclose(found, simulated(ranks, local_size, kind), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("wire", ["float32", "float16"])
@pytest.mark.parametrize("culprit", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_is_not_finite_is_told_whatever_it_sends(kind, culprit, wire):
    """Rank 0 sends no elements, and can still report it."""
    recipe = KINDS[kind](ErrorFeedback(Uneven(wire)))

    def one_rank(grid):
        state = recipe.init(Spec(SIZE, grid))
        vector = drawn(grid.world.rank, 0)
        recipe.aggregate(tf.constant(vector), state)
        before = recipe.residual(state).numpy()
        vector[SIZE - 1] = np.nan if grid.world.rank == culprit else vector[SIZE - 1]
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {culprit}"):
            recipe.aggregate(tf.constant(vector), state)
        np.testing.assert_array_equal(recipe.residual(state).numpy(), before)
        return recipe.exchange(tf.constant(drawn(grid.world.rank, 1)), state).metrics

    for rank, metrics in enumerate(threads.run(3, 1, one_rank)):
        entries = int(metrics["selected"])
        width = {"float32": 4, "float16": 2}[wire]
        assert entries == share(rank, SIZE)
        assert int(metrics["bytes_across"]) == 2 * (8 + 4 * entries + -(-width * entries // 4) * 4)


@pytest.mark.parametrize("about", [None, KEPT])
@pytest.mark.parametrize("culprit", range(6))
def test_a_rank_that_is_not_finite_is_told_through_the_nodes(culprit, about):
    """If few are expected, the last all-gather is of pairs; the reported bytes must be those sent."""
    recipe = Hierarchical(Compressed(ErrorFeedback(Uneven(about=about))))

    def one_rank(grid):
        state = recipe.init(Spec(SIZE, grid))
        vector = drawn(grid.world.rank, 0)
        vector[SIZE // 2] = np.nan if grid.world.rank == culprit else vector[SIZE // 2]
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {culprit}"):
            recipe.aggregate(tf.constant(vector), state)
        assert not recipe.residual(state).numpy().any()
        sent = sum(threads.sent(grid).values())
        metrics = recipe.exchange(tf.constant(drawn(grid.world.rank, 0)), state).metrics
        return metrics, sum(threads.sent(grid).values()) - sent

    for rank, (metrics, sent) in enumerate(threads.run(6, 2, one_rank)):
        inside, across = int(metrics["bytes_inside"]), int(metrics["bytes_across"])
        assert inside + across == sent and across == 2 * (8 + 8 * share(rank, SIZE // 2))
        entries = sum(share(each, SIZE // 2) for each in range(rank % 2, 6, 2))
        assert inside == 4 * SIZE // 2 + (4 * SIZE // 2 if about is None else 8 + 8 * entries)


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=str)
@pytest.mark.parametrize("ranks, local_size", [(3, 1), (4, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_send_codes_lose_nothing(kind, ranks, local_size, quantizer):
    """The input equals the output plus what is kept, up to float32's rounding; every rank has the same bits."""
    recipe = KINDS[kind](ErrorFeedback(Quantized(Uneven(), quantizer)))

    def one_rank(grid):
        state = recipe.init(Spec(SIZE, grid, segments=SEGMENTS))
        means = [recipe.aggregate(tf.constant(drawn(grid.world.rank, step)), state).numpy() for step in range(STEPS)]
        return np.stack(means), recipe.residual(state).numpy()

    means, left = zip(*threads.run(ranks, local_size, one_rank), strict=True)
    assert len({mean.tobytes() for mean in means}) == 1
    went_in = np.sum([drawn(rank, step) for rank in range(ranks) for step in range(STEPS)], axis=0)
    np.testing.assert_allclose(ranks * means[0].sum(axis=0) + np.sum(left, axis=0), went_in, atol=1e-4)


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=str)
@pytest.mark.parametrize("culprit", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_is_not_finite_is_told_where_values_are_coded(kind, culprit, quantizer):
    """The bytes of its next exchange must also be those of the interface."""
    recipe = KINDS[kind](ErrorFeedback(Quantized(Uneven(), quantizer)))

    def one_rank(grid):
        state = recipe.init(Spec(SIZE, grid, segments=SEGMENTS))
        vector = drawn(grid.world.rank, 0)
        recipe.aggregate(tf.constant(vector), state)
        before = recipe.residual(state).numpy()
        vector[SIZE - 1] = np.nan if grid.world.rank == culprit else vector[SIZE - 1]
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {culprit}"):
            recipe.aggregate(tf.constant(vector), state)
        np.testing.assert_array_equal(recipe.residual(state).numpy(), before)
        sent = sum(threads.sent(grid).values())
        metrics = recipe.exchange(tf.constant(drawn(grid.world.rank, 1)), state).metrics
        return metrics, sum(threads.sent(grid).values()) - sent

    for rank, (metrics, sent) in enumerate(threads.run(3, 1, one_rank)):
        entries = share(rank, SIZE)
        assert int(metrics["selected"]) == entries
        codes = -(-quantizer.code_bytes(entries) // 4) * 4
        scales = (int(metrics["bytes_across"]) // 2 - 16 - 4 * entries - codes) // 4
        assert 0 <= scales <= quantizer.scale_count(entries)
        assert int(metrics["bytes_across"]) == sent == 2 * (16 + 4 * entries + 4 * scales + codes)
