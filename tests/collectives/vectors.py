"""Inputs of a collective on all ranks, and its dense result."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import collectives
from hvd_sparse.collectives import Auto
from hvd_sparse.costs import Link
from hvd_sparse.costs.collectives import Transport
from tests import threads
from tests.collectives.counting import CountingCommunicator

RANKS = [1, 2, 3, 6, 8, *(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (4, 5, 7, 9))]
FREE = Transport(Link(0.0, 1e9), Link(0.0, 1e9), Link(0.0, 1e9))
SLOW_CALLS = Transport(Link(1e-9, 1e9), Link(1.0, 1e9), Link(1.0, 1.0))  # only exchanges between pairs are fast
ALL = {
    "allgather": collectives.allgather,
    "recursive_doubling": collectives.recursive_doubling,
    "split_allgather": collectives.split_allgather,
    "dynamic": collectives.dynamic,
    "sparse_ring": collectives.sparse_ring,
    "dense_ring": collectives.dense_ring,
    "auto": Auto(FREE),
    "auto_by_calls": Auto(SLOW_CALLS),
}
NEUTRAL = {"sum": 0, "product": 1, "max": -np.inf, "min": np.inf}
COMBINE = {"sum": np.add, "product": np.multiply, "max": np.maximum, "min": np.minimum}
every = pytest.mark.parametrize("collective", ALL.values(), ids=ALL)


def index_sets(kind, ranks, size, density, seed=0):
    """The rows that each rank contributes, in any order."""
    drawn = np.random.default_rng([seed, ranks, size])
    count = round(density * size)
    if kind == "identical":
        return [drawn.permutation(size)[:count]] * ranks
    if kind == "disjoint":
        return [part[: max(count, 1)] for part in np.array_split(drawn.permutation(size), ranks)]
    if kind == "on one rank":
        return [drawn.permutation(size)[: count if rank == ranks - 1 else 0] for rank in range(ranks)]
    return [drawn.choice(size, count, replace=False) for _ in range(ranks)]


def slices_of(indices, shape, dtype="float32", seed=0, index_dtype="int32"):
    """Small integers, whose sums and products are exact in every dtype."""
    drawn = np.random.default_rng([seed, len(indices)])
    values = drawn.choice([-2, -1, 1, 2], [len(indices), *shape[1:]])
    return tf.IndexedSlices(
        tf.constant(values.astype(dtype)), tf.constant(np.asarray(indices, index_dtype)), tf.constant(shape)
    )


def expected_of(inputs, shape, op):
    """The dense result, in float64."""
    total = np.full(shape, NEUTRAL[op], np.float64)
    for slices in inputs:
        COMBINE[op].at(total, slices.indices.numpy(), slices.values.numpy().astype(np.float64))
    return total


def dense_of(got, shape, op, present=None, exactly=True):
    """The dense vector of a result; if sparse, it must have the rows `present` and, with `exactly`, no others."""
    if not isinstance(got, tf.IndexedSlices):
        assert got.shape == shape
        return got.numpy()
    indices = got.indices.numpy()
    assert (np.diff(indices) > 0).all()
    if present is not None:
        np.testing.assert_array_equal(indices if exactly else np.intersect1d(indices, present), present)
    np.testing.assert_array_equal(tf.get_static_value(got.dense_shape), shape)
    vector = np.full(shape, NEUTRAL[op], got.values.dtype.as_numpy_dtype)
    vector[indices] = got.values.numpy()
    return vector


def slices_like(slices, values):
    return tf.IndexedSlices(values, slices.indices, slices.dense_shape)


GOOD = slices_of([1, 2], [10])


def counted(collective, inputs):
    """The counters of all ranks after one call."""

    def one_rank(grid):
        counter = CountingCommunicator(grid.world)
        collective(inputs[counter.rank], counter)
        return counter

    return threads.run(len(inputs), len(inputs), one_rank)


def errors_of(inputs, collective, **arguments):
    with pytest.raises(threads.RanksFailed) as caught:
        threads.run(len(inputs), len(inputs), lambda grid: collective(inputs[grid.world.rank], grid.world, **arguments))
    return caught.value.errors
