"""Invalid input on one rank, and ranks that disagree: one clear error on all."""

from __future__ import annotations

import pytest
import tensorflow as tf

from hvd_sparse import collectives
from hvd_sparse.transport.communicator import LoneCommunicator
from tests import threads
from tests.collectives.vectors import ALL, GOOD, errors_of, slices_of

BAD = {
    "op to be one of": (GOOD, {"op": "mean"}),
    "dense_above to be a number": (GOOD, {"dense_above": 0.5}),
    "dense_above to be at least 0": (GOOD, {"dense_above": -1}),
    "expected tf.IndexedSlices, got": (tf.zeros([10]), {}),
    "float32 or float64, got bfloat16": (
        tf.IndexedSlices(tf.zeros([1], tf.bfloat16), tf.constant([1]), tf.constant([10])),
        {},
    ),
    "indices of int32 or int64, got uint8": (
        tf.IndexedSlices(tf.zeros([1]), tf.constant([1], tf.uint8), tf.constant([10])),
        {},
    ),
    "whose dense_shape is known": (tf.IndexedSlices(tf.zeros([1]), tf.constant([1])), {}),
    "whose rows have elements": (tf.IndexedSlices(tf.zeros([1, 0]), tf.constant([1]), tf.constant([10, 0])), {}),
    "fewer than 2": (tf.IndexedSlices(tf.zeros([1]), tf.constant([1]), tf.constant([2**31], tf.int64)), {}),
    "expected indices \\[k\\], got shape": (
        tf.IndexedSlices(tf.zeros([1, 1]), tf.constant([[1]]), tf.constant([10, 1])),
        {},
    ),
    "expected values": (tf.IndexedSlices(tf.zeros([2]), tf.constant([1]), tf.constant([10])), {}),
    "indices in \\[0, 10\\), got 10 at position 1": (
        tf.IndexedSlices(tf.zeros([2]), tf.constant([1, 10]), tf.constant([10])),
        {},
    ),
    "got -1 at position 0": (tf.IndexedSlices(tf.zeros([1]), tf.constant([-1], tf.int64), tf.constant([10])), {}),
}
LAST = next(reversed(BAD))


class TestBadInput:
    @pytest.mark.parametrize("told", BAD)
    def test_of_the_only_rank(self, told):
        slices, arguments = BAD[told]
        with pytest.raises(ValueError, match=told):
            collectives.recursive_doubling(slices, LoneCommunicator(), **arguments)

    @pytest.mark.parametrize(
        "collective, told",
        [*((ALL["split_allgather"], told) for told in BAD), *((each, LAST) for each in ALL.values())],
    )
    def test_of_one_rank_is_the_same_error_on_all(self, collective, told):
        """Every collective uses the same check."""
        slices, arguments = BAD[told]

        def one_rank(grid):
            bad = grid.world.rank == 1
            return collective(slices if bad else GOOD, grid.world, **(arguments if bad else {}))

        with pytest.raises(threads.RanksFailed) as caught:
            threads.run(3, 3, one_rank)
        texts = {str(error) for error in caught.value.errors}
        assert len(texts) == 1 and all(isinstance(error, ValueError) for error in caught.value.errors)
        with pytest.raises(ValueError, match=f"rank 1: .*{told}"):
            raise caught.value.errors[0]

    @pytest.mark.parametrize("collective", [ALL["dynamic"], ALL["allgather"]], ids=["dynamic", "allgather"])
    @pytest.mark.parametrize(
        "other, told",
        [
            (slices_of([1], [11]), "rank 2 has shape = \\[11\\], rank 0 has \\[10\\]"),
            (slices_of([1], [10, 1]), "rank 2 has shape = \\[10, 1\\]"),
            (slices_of([1], [10], "float64"), 'rank 2 has dtype = "float64", rank 0 has "float32"'),
        ],
    )
    def test_ranks_that_bring_different_vectors(self, collective, other, told):
        for error in errors_of([GOOD, GOOD, other], collective):
            with pytest.raises(ValueError, match=told):
                raise error

    def test_ranks_that_call_differently(self):
        def one_rank(grid):
            op = "max" if grid.world.rank else "sum"
            collective = collectives.dynamic if grid.world.rank else collectives.allgather
            return collective(GOOD, grid.world, op=op, name="odd")

        with pytest.raises(threads.RanksFailed, match='rank 1 has collective = "dynamic".*rank 1 has op = "max"'):
            threads.run(2, 2, one_rank)

    @pytest.mark.parametrize("to, source", [(0, None), (None, 3), (-1, None), (None, 0)])
    def test_an_exchange_with_nobody(self, to, source):
        def one_rank(grid):
            return grid.world.exchange(tf.zeros([1]), to, source, "odd") if grid.world.rank == 0 else None

        with pytest.raises(threads.RanksFailed, match="Expected another rank of 3"):
            threads.run(3, 3, one_rank)
