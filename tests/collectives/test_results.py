"""Every collective equals the dense result bit for bit."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import collectives
from hvd_sparse.transport.communicator import LoneCommunicator
from tests import threads
from tests.collectives.vectors import (
    ALL,
    RANKS,
    dense_of,
    every,
    expected_of,
    index_sets,
    slices_like,
    slices_of,
)

IN_PIECES = (collectives.split_allgather, collectives.sparse_ring, ALL["auto"])


def check(collective, inputs, shape, op="sum"):
    """Runs a collective with one rank per input; returns the results of all."""
    ranks = len(inputs)
    results = threads.run(ranks, ranks, lambda grid: collective(inputs[grid.world.rank], grid.world, op=op))
    expected = expected_of(inputs, shape, op)
    present = np.unique(np.concatenate([slices.indices.numpy() for slices in inputs]))
    for got in results:
        vector = dense_of(got, shape, op, present, exactly=collective not in IN_PIECES)
        dtype = inputs[0].values.dtype.as_numpy_dtype
        assert vector.dtype == dtype and vector.tobytes() == expected.astype(dtype).tobytes()
    return results


class TestGraph:
    """On one rank; tests/parallel has tests on more."""

    @every
    def test_gives_what_eager_code_gives(self, collective):
        slices = slices_of([5, 2, 5], [9, 2])
        graph = tf.function(lambda values: collective(slices_like(slices, values), LoneCommunicator()))
        got, expected = graph(slices.values), expected_of([slices], [9, 2], "sum")
        np.testing.assert_array_equal(dense_of(got, [9, 2], "sum"), expected)

    def test_start_is_plain_dataflow(self):
        slices = slices_of([5, 2, 5], [9])

        @tf.function
        def run(values):
            handle = collectives.start(
                collectives.recursive_doubling, slices_like(slices, values), LoneCommunicator(), name="background"
            )
            assert handle.ready()
            return handle.wait().values

        assert run(slices.values).shape == [2]


KINDS = {
    "overlapping": ((1, 1), (7, 0.3), (1003, 0), (1003, 0.01), (1003, 0.3), (1003, 1)),
    "disjoint": ((1003, 0.01), (1003, 0.3)),
    "identical": ((1003, 0.01), (1003, 1)),
    "on one rank": ((1003, 0.1),),
}


class TestResult:
    @every
    @pytest.mark.parametrize("ranks", RANKS)
    @pytest.mark.parametrize("kind", KINDS)
    def test_is_the_dense_result_to_the_bit(self, collective, ranks, kind):
        for size, density in KINDS[kind]:
            sets = index_sets(kind, ranks, size, density)
            inputs = [slices_of(indices, [size], seed=rank) for rank, indices in enumerate(sets)]
            check(collective, inputs, [size])

    @every
    @pytest.mark.parametrize("ranks", RANKS)
    @pytest.mark.parametrize("op", ["max", "min", "product"])
    def test_is_the_dense_result_of_other_operations(self, collective, ranks, op):
        for kind, density in (("overlapping", 0.3), ("identical", 1), ("disjoint", 0.1)):
            sets = index_sets(kind, ranks, 503, density)
            inputs = [slices_of(indices, [503], seed=rank) for rank, indices in enumerate(sets)]
            check(collective, inputs, [503], op)

    @every
    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    @pytest.mark.parametrize("index_dtype", ["int32", "int64"])
    def test_has_the_dtypes_that_were_brought(self, collective, dtype, index_dtype):
        sets = index_sets("overlapping", 3, 211, 0.1)
        inputs = [slices_of(indices, [211], dtype, rank, index_dtype) for rank, indices in enumerate(sets)]
        for got in check(collective, inputs, [211]):
            if isinstance(got, tf.IndexedSlices):
                assert got.indices.dtype == tf.as_dtype(index_dtype)

    @every
    @pytest.mark.parametrize("ranks", [1, 2, 5])
    @pytest.mark.parametrize("row", [[1], [3], [2, 5]])
    @pytest.mark.parametrize("op", ["sum", "max"])
    def test_rows_of_the_same_index_are_combined_first(self, collective, ranks, row, op):
        drawn = np.random.default_rng(ranks)
        inputs = [slices_of(drawn.integers(0, 40, 30), [97, *row], seed=rank) for rank in range(ranks)]
        check(collective, inputs, [97, *row], op)

    @every
    @pytest.mark.parametrize("op", ["sum", "max", "product"])
    @pytest.mark.parametrize("ordered", [1, 3])
    def test_whole_vectors_are_combined_as_they_are(self, collective, op, ordered):
        """Every row in order, on all ranks or on one; there are so many that indices are checked piece by piece."""
        rows = np.arange(2**14 + 3)
        inputs = [slices_of(rows if rank < ordered else rows[::-1], [len(rows)], seed=rank) for rank in range(3)]
        check(collective, inputs, [len(rows)], op)

    @every
    @pytest.mark.parametrize("ranks", [3, 6])
    def test_has_the_same_bits_on_all_ranks_whatever_the_floats(self, collective, ranks):
        drawn = np.random.default_rng(0)
        inputs = [
            tf.IndexedSlices(
                tf.constant(drawn.standard_normal(60).astype(np.float32)),
                tf.constant(drawn.choice(200, 60, replace=False).astype(np.int32)),
                tf.constant([200]),
            )
            for _ in range(ranks)
        ]
        results = threads.run(ranks, ranks, lambda grid: collective(inputs[grid.world.rank], grid.world))
        first = dense_of(results[0], [200], "sum")
        assert all(dense_of(got, [200], "sum").tobytes() == first.tobytes() for got in results)
        np.testing.assert_allclose(first, expected_of(inputs, [200], "sum"), rtol=1e-5, atol=1e-6)

    @every
    @pytest.mark.parametrize("dense_above", [0, 20, 1000])
    def test_is_the_same_wherever_it_turns_dense(self, collective, dense_above):
        sets = index_sets("overlapping", 5, 301, 0.2)
        inputs = [slices_of(indices, [301], seed=rank) for rank, indices in enumerate(sets)]
        check(functools.partial(collective, dense_above=dense_above), inputs, [301])

    @pytest.mark.parametrize("name", ["allgather", "recursive_doubling", "split_allgather", "sparse_ring"])
    def test_is_a_tensor_above_delta_only(self, name):
        few = 12 if ALL[name] in IN_PIECES else 50
        for count, kind in ((few, tf.IndexedSlices), (51, tf.Tensor)):
            inputs = [slices_of(range(count), [100])] * 3
            for got in check(ALL[name], inputs, [100]):
                assert isinstance(got, kind)

    @every
    def test_ranks_above_the_size(self, collective):
        check(collective, [slices_of([rank % 3], [3], seed=rank) for rank in range(8)], [3])

    @every
    def test_a_vector_without_rows(self, collective):
        check(collective, [slices_of([], [0])] * 3, [0])
