"""Collectives in the background."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import collectives
from hvd_sparse.transport.communicator import LoneCommunicator
from tests import threads
from tests.collectives.vectors import ALL, GOOD, dense_of, expected_of, slices_of


class TestHandles:
    def test_order_does_not_matter_and_many_are_in_flight(self):
        ranks, number = 3, 20
        inputs = [[slices_of([rank, call], [50], seed=call) for call in range(number)] for rank in range(ranks)]

        def one_rank(grid):
            order = list(range(number))
            random.Random(grid.world.rank).shuffle(order)
            handles = {
                call: collectives.start(
                    list(ALL.values())[call % 6], inputs[grid.world.rank][call], grid.world, name=f"call{call}"
                )
                for call in order
            }
            return [handles[call].wait() for call in range(number)]

        for results in threads.run(ranks, ranks, one_rank, in_order=False):
            for call, got in enumerate(results):
                expected = expected_of([each[call] for each in inputs], [50], "sum")
                np.testing.assert_array_equal(dense_of(got, [50], "sum"), expected)

    def test_is_ready_once_the_others_have_come(self):
        gate = threading.Event()

        def one_rank(grid):
            if grid.world.rank == 1:
                assert gate.wait(threads.PATIENCE)
            handle = collectives.start(collectives.allgather, GOOD, grid.world)
            if grid.world.rank == 0:
                assert not handle.ready()
                gate.set()
            result = handle.wait()
            assert handle.ready() and handle.wait() is result
            return result

        assert len(threads.run(2, 2, one_rank)) == 2

    def test_a_name_in_flight_is_refused_and_free_again_afterwards(self):
        gate = threading.Event()

        def one_rank(grid):
            if grid.world.rank == 0:
                handle = collectives.start(collectives.allgather, GOOD, grid.world, name="same")
                with pytest.raises(ValueError, match="not in flight, got 'same' again"):
                    collectives.start(collectives.allgather, GOOD, grid.world, name="same")
                gate.set()
            else:
                assert gate.wait(threads.PATIENCE)
                handle = collectives.start(collectives.allgather, GOOD, grid.world, name="same")
            handle.wait()
            return collectives.start(collectives.allgather, GOOD, grid.world, name="same").wait()

        assert len(threads.run(2, 2, one_rank)) == 2

    def test_a_process_that_ends_does_not_wait_for_the_ranks(self):
        come = threading.Event()

        def waits(slices, communicator, **arguments):
            assert come.wait(threads.PATIENCE)

        handle = collectives.start(waits, GOOD, LoneCommunicator(), name="held")
        (thread,) = (each for each in threading.enumerate() if each.name.endswith("held"))
        assert thread.daemon
        come.set()
        handle.wait()

    def test_wait_raises_what_the_collective_raised(self):
        handle = collectives.start(collectives.dynamic, tf.zeros([3]), LoneCommunicator())
        for _ in range(2):
            with pytest.raises(ValueError, match="expected tf.IndexedSlices"):
                handle.wait()
