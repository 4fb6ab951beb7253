"""`dynamic` in low precision: rounding errors are kept, and replicas agree."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import collectives
from hvd_sparse.aggregators import SparseAllReduce
from hvd_sparse.compression.quantizers import QSGD, OneBit, TwoBits
from hvd_sparse.compression.selectors import TopK
from hvd_sparse.transport.communicator import LoneCommunicator
from tests import threads
from tests.collectives.vectors import counted, errors_of, expected_of, slices_of

QUANTIZERS = [*(QSGD(bits, bucket=64) for bits in (2, 4, 8)), OneBit("global"), OneBit("threshold"), TwoBits()]


class TestQuantized:
    @pytest.mark.parametrize("ranks", [1, 2, 3, 5])
    @pytest.mark.parametrize("quantizer", QUANTIZERS, ids=str)
    @pytest.mark.parametrize("row", [[], [3]])
    def test_owners_keep_what_the_receivers_lack(self, ranks, quantizer, row):
        """Over several calls, the input equals the output plus what is kept, up to float32's rounding."""
        size, width = 1003, math.prod(row)
        drawn = np.random.default_rng(0)
        calls = [
            [slices_of(drawn.integers(0, size, 300), [size, *row], seed=seed) for seed in range(ranks)] for _ in "abc"
        ]

        def one_rank(grid):
            world, totals = grid.world, []
            error = tf.zeros([collectives.own_rows(size, world) * width])
            for step, inputs in enumerate(calls):
                result = collectives.dynamic_quantized(inputs[world.rank], world, quantizer, error, step)
                assert int(result.culprit) == 0
                error = result.error
                totals.append(result.total.numpy())
            return totals, error.numpy()

        results = threads.run(ranks, ranks, one_rank)
        for totals, _ in results:
            assert [total.tobytes() for total in totals] == [total.tobytes() for total in results[0][0]]
        came_out = sum(total.astype(np.float64) for total in results[0][0]).reshape(-1)
        kept = np.concatenate([error for _, error in results])
        went_in = sum(expected_of(inputs, [size, *row], "sum") for inputs in calls).reshape(-1)
        np.testing.assert_allclose(came_out + kept, went_in, atol=1e-4)
        assert np.abs(kept).max() > 0 or quantizer == QSGD(8, bucket=64)

    def test_dynamic_takes_a_quantizer(self):
        inputs = [slices_of(range(500), [500], seed=rank) for rank in range(3)]
        quantizer = QSGD(4, bucket=32)
        results = threads.run(
            3, 3, lambda grid: collectives.dynamic(inputs[grid.world.rank], grid.world, quantizer=quantizer)
        )
        assert len({got.numpy().tobytes() for got in results}) == 1
        np.testing.assert_allclose(results[0], expected_of(inputs, [500], "sum"), atol=6 / 7)

    def test_low_precision_is_of_fewer_bytes(self):
        inputs = [slices_of(range(20000), [20000], seed=rank) for rank in range(4)]
        coded = counted(functools.partial(collectives.dynamic, quantizer=QSGD(4)), inputs)
        split = 3 * (8 + 4 * 5000)  # pieces that are sent dense, with their headers
        assert coded[0].sent - split == 3 * (5000 // 2 + 4 * 5)

    def test_a_value_that_is_not_finite_is_an_error_on_every_rank(self):
        inputs = [slices_of(range(30), [30]) for _ in range(3)]
        inputs[2] = tf.IndexedSlices(tf.constant([np.inf]), tf.constant([15]), tf.constant([30]))
        errors = errors_of(inputs, functools.partial(collectives.dynamic, quantizer=QSGD(4)))
        for error in errors:
            assert isinstance(error, tf.errors.InvalidArgumentError) and "piece of rank" in error.message

    def test_a_quantizer_whose_scales_depend_on_places_is_for_what_each_rank_sends(self):
        told = r"whose scales do not depend on places, such as QSGD\(4\), got OneBit\(scale='column'\)"
        with pytest.raises(ValueError, match=told):
            collectives.dynamic(slices_of([1], [3]), LoneCommunicator(), quantizer=OneBit("column"))
        with pytest.raises(ValueError, match=told):
            SparseAllReduce(TopK(0.1), quantizer=OneBit("column"))

    def test_only_sums_are_rounded(self):
        with pytest.raises(ValueError, match="expected op 'sum' with a quantizer, got 'max'"):
            collectives.dynamic(slices_of([1], [3]), LoneCommunicator(), op="max", quantizer=QSGD(4))
