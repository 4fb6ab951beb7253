"""Timing by all ranks together, with a clock that only the test's own calls advance."""

from __future__ import annotations

import threading
import types

import pytest

from hvd_sparse.costs import Link
from hvd_sparse.transport import timing
from hvd_sparse.transport.communicator import LoneCommunicator
from tests import threads

SIZES = timing.Sizes(1 << 6, 1 << 20, 16, long=0.01)


@pytest.fixture
def clock(monkeypatch):
    """Each rank's own clock; it stands still unless a test advances it."""
    own = threading.local()
    monkeypatch.setattr(timing, "time", types.SimpleNamespace(perf_counter=lambda: own.now))
    return own


class TestSlowest:
    @pytest.mark.parametrize("slow", range(3))
    def test_the_slowest_rank_counts_and_all_ranks_are_told(self, clock, slow):
        def one_rank(grid):
            clock.now = 100.0 * grid.world.rank

            def run():
                clock.now += 0.5 if grid.world.rank == slow else 0.25

            return timing.slowest(grid.world, run, "test")

        assert threads.run(3, 1, one_rank) == [0.5] * 3

    def test_waiting_for_others_does_not_count(self, clock):
        class Waiting(LoneCommunicator):
            def allreduce(self, tensor, op, name):
                clock.now += 7.0
                return super().allreduce(tensor, op, name)

        def run():
            clock.now += 0.5

        clock.now = 0.0
        assert timing.slowest(Waiting(), run, "test") == 0.5
        assert clock.now == 14.5


def test_cold_rounds_do_not_count(clock):
    takes = iter([9.0, 9.0, 9.0, 1.0, 100.0, 3.0, 2.0, 4.0])

    def run():
        clock.now += next(takes)

    clock.now = 0.0
    assert timing.median_seconds(LoneCommunicator(), run, "test") == 3.0
    assert next(takes, None) is None


def test_medians_by_name():
    assert timing.medians({"odd": [3.0, 1.0, 2.0], "even": (1.0, 4.0)}) == {"odd": 2.0, "even": 2.5}


class TestFitLink:
    @pytest.mark.parametrize("latency, bandwidth", [(0.0, 1e8), (1e-5, 1e9), (2e-3, 1.25e8), (5e-3, 1e6)])
    @pytest.mark.parametrize("element", [4, 24])
    def test_a_made_up_link_is_found_again(self, latency, bandwidth, element):
        link = timing.fit_link(lambda each: latency + element * each / bandwidth, SIZES, element)
        assert link.latency == pytest.approx(latency, abs=1e-9)
        assert link.bandwidth == pytest.approx(bandwidth)
        assert link.call == 0.0

    def test_ranks_find_the_link_of_the_slowest(self, clock):
        """Small calls take longest on rank 0, large ones on rank 1."""
        links = [Link(4e-3, 1e9), Link(1e-3, 1e7)]

        def one_rank(grid):
            clock.now, own = 0.0, links[grid.world.rank]

            def seconds(each):
                def run():
                    clock.now += own.message(4 * each)

                return timing.median_seconds(grid.world, run, "test")

            return timing.fit_link(seconds, SIZES, 4)

        first, second = threads.run(2, 1, one_rank)
        assert first == second
        small, large = 4 * SIZES.smallest, 4 * SIZES.smallest * SIZES.step**3  # the first size that takes 0.01 s
        assert first.message(small) == pytest.approx(links[0].message(small))
        assert first.message(large) == pytest.approx(links[1].message(large))

    @pytest.mark.parametrize(
        "latency, bandwidth, asked",
        [(0.0, 1e3, [64]), (0.0, 1e5, [64, 1024]), (0.02, 1e9, [64]), (0.0, 1e12, [64, 1024, 16384, 262144, 4194304])],
    )
    def test_sizes_grow_until_a_call_takes_long_or_the_largest_was_sent(self, latency, bandwidth, asked):
        sent = []

        def seconds(each):
            sent.append(each)
            return latency + 4 * each / bandwidth

        timing.fit_link(seconds, SIZES, 4)
        assert sent == asked

    def test_where_the_smallest_takes_long_all_of_it_is_bandwidth(self):
        assert timing.fit_link(lambda each: 0.5, SIZES, 4) == Link(0.0, 4 * SIZES.smallest / 0.5)

    @pytest.mark.parametrize("later", [1e-3, 5e-4])
    def test_calls_that_do_not_grow_have_a_finite_bandwidth(self, later):
        """Noise can make a larger call faster."""
        link = timing.fit_link(lambda each: 1e-3 if each == SIZES.smallest else later, SIZES, 4)
        assert link.latency == pytest.approx(1e-3) and 0 < link.bandwidth < 1e17
