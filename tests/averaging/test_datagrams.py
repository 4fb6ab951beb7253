"""Averaging by datagrams over real sockets: every segment is the mean of the ranks that contributed to it."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse.averaging import Datagrams
from tests import threads
from tests.averaging import simulation
from tests.averaging.group import LONG, Ranks, all_lost_is_told_of, check, mean_of, together
from tests.averaging.relay import Habits
from tests.simulation import same_bits

PATIENCE = 2.0  # seconds; a rank that comes later by that much, on a busy machine, would count as silent


@pytest.mark.parametrize(
    "habits",
    [
        Habits(drops=0.01, seed=1),
        Habits(drops=0.05, repeats=0.05, holds=0.05, seed=2),
        Habits(drops=0.2, repeats=0.2, holds=0.2, seed=3),
    ],
)
@pytest.mark.parametrize("count", [3, pytest.param(2, marks=pytest.mark.thorough)])
def test_each_segment_is_the_mean_of_those_that_arrived(ranks, habits, count):
    size = 60_001
    group = ranks(count, size, habits)
    own = simulation.vectors(count, size)
    lost = sum(check(group, own, group.average(own, round)) for round in range(4))
    assert 0 < lost < 2 * 4 * count * count * (size // count // 354 + 1)
    all_lost_is_told_of(group, lost)
    seen = group.channels[0].report()["datagrams"]
    assert (seen["replayed"] > 0) == (habits.repeats > 0), seen
    assert not any(seen[fate] for fate in ("bad_size", "bad_header", "bad_start", "bad_tag", "other_place")), seen


def test_a_mean_is_sent_of_every_segment(ranks):
    """If most segments lack a part, averaging them after the reduce-scatter takes a while, and the sender waits."""
    size, count = 200_000, 2  # blocks with more segments than are averaged at once
    group = ranks(count, size, Habits(drops=0.2, seed=4), rate=4e8)
    own = simulation.vectors(count, size)
    all_lost_is_told_of(group, sum(check(group, own, group.average(own, round)) for round in range(8)))


def test_without_loss_all_ranks_have_the_same_bits(ranks):
    for count, size in ((2, 1), (3, 7), (4, 30_000)):
        group = ranks(count, size)
        own = simulation.vectors(count, size)
        everyone = mean_of(own, (1 << count) - 1)
        for round in range(2):
            made = group.average(own, round)
            for averaged in made.values():
                same_bits(averaged.vector.numpy(), everyone)
            assert check(group, own, made) == 0


def test_who_never_comes_is_waited_for_once_and_may_come_late(ranks):
    group = ranks(3, 5_000, patience=PATIENCE)
    own = simulation.vectors(3, 5_000)
    for round in range(3):
        made = group.average(own, round, [0, 1])
        for rank, averaged in made.items():
            assert not averaged.expected.numpy()[:, 2].any()
            report = group.channels[rank].report()
            assert report["silent"] == [2]
            assert round > 0 or report["waited"] >= PATIENCE
        recorded = group.channels[0].recorded()
        assert set(recorded.contributors[recorded.contributors > 0].tolist()) == {0b011}
    made = late(group, own, 2, 3)
    assert {int(averaged.round) for averaged in made.values()} == {3}
    assert check(group, own, made) == 0


def late(group: Ranks, own: np.ndarray, comer: int, round: int) -> dict[int, Any]:
    """One rank begins with round 0; the others begin with another round as soon as they notice it."""
    made: dict[int, Any] = {}

    def one(rank: int, number: int) -> None:
        made[rank] = group.channels[rank].average(tf.constant(own[rank]), tf.constant(number, tf.int64))

    others = [rank for rank in range(len(own)) if rank != comer]
    coming = threading.Thread(target=one, args=(comer, 0))
    coming.start()
    while any(group.channels[rank].report()["silent"] for rank in others):
        os.sched_yield()
    together([lambda rank=rank: one(rank, round) for rank in others])
    coming.join()
    return made


def test_who_left_can_come_back_as_another_process(ranks):
    group = ranks(3, 5_000)
    own = simulation.vectors(3, 5_000)
    assert check(group, own, group.average(own, 0)) == 0
    group.channels[1].close()
    made = group.average(own, 1, [0, 2])  # patience is long, but it has announced that it leaves
    assert all(group.channels[rank].report()["silent"] == [1] for rank in made)
    group.begin_anew(1)
    made = late(group, own, 1, 2)
    assert {int(averaged.round) for averaged in made.values()} == {2}
    assert check(group, own, made) == 0


def test_a_phase_ends_at_its_limit_where_a_rank_falls_silent_in_it(ranks):
    """The limits are as documented, and the next round begins without that rank."""
    size, rate, multiple = 60_000, 4e6, 1.5
    group = ranks(3, size, rate=rate, multiple=multiple, least=0.01, patience=0.2)
    own = simulation.vectors(3, size)
    sent = 2 * -(-size // 3 // 354) * (1472 + 42)
    hit = threading.Thread(target=_cut_off_in_mid_phase, args=(group, 2))
    hit.start()
    made = group.average(own, 0)
    hit.join()
    assert check(group, own, made) > 0
    for channel in group.channels[:2]:
        lasted, limit = channel.report()["reduce_scatter"]
        assert limit == pytest.approx(multiple * 8 * sent / rate)
        assert lasted >= limit
    made = group.average(own, 1, [0, 1])
    assert [channel.report()["silent"] for channel in group.channels[:2]] == [[2], [2]]
    group.relay.mend(2)
    made = late(group, own, 2, 2)
    assert not any(channel.report()["silent"] for channel in group.channels)
    check(group, own, made)


def test_what_a_phase_cuts_off_is_averaged_all_the_same(ranks):
    """The limits expire before anything can have been averaged; the mean of what has arrived is made and recorded.

    A rank that hears of the others' next round before it has started this one joins that round, and is alone.
    """
    size = 300_000  # blocks with more segments than are averaged at once
    group = ranks(3, size, rate=1e12, multiple=1e-9, slack=1e-9, least=1e-6, patience=0.2)
    own = simulation.vectors(3, size)
    made = group.average(own, 0)
    assert check(group, own, made) > 0
    for rank in made:
        contributors = group.channels[rank].recorded().contributors
        assert ((contributors >> np.uint64(rank)) & np.uint64(1)).all()


def _cut_off_in_mid_phase(group: Ranks, rank: int) -> None:
    while group.channels[rank].report()["sent"] < 40:
        os.sched_yield()
    group.relay.cut_off(rank)


def test_another_job_is_not_heard(ranks):
    """Two ranks with different secrets: each averages alone, and counts the datagrams of the other."""
    group = ranks(2, 100, patience=0.2)
    group.channels[1].close()
    number, _ = group.open(1, 2, 1, group.ports[1])
    group.channels[1] = group.join(1, number, [1, 1], b"sixteen bytes of")
    own = simulation.vectors(2, 100)
    for rank, averaged in group.average(own, 0).items():
        same_bits(averaged.vector.numpy(), own[rank])
        report = group.channels[rank].report()
        assert report["silent"] == [1 - rank]
        assert report["datagrams"]["bad_header"] > 0


def test_limits_follow_the_median(ranks):
    """Or the time that the bytes need, if longer: the first limit is a multiple of it; the rate never falls here."""
    slack, multiple = 3.0, 1e6
    group = ranks(2, 2_000, slack=slack, least=1e-6, multiple=multiple)
    own = simulation.vectors(2, 2_000)
    seconds: list[float] = []
    needed = 0.0
    for round in range(5):
        group.average(own, round)
        lasted, limit = group.channels[0].report()["reduce_scatter"]
        if round:
            median = sorted(seconds)[len(seconds) // 2]  # 0 if all had arrived before this rank began
            assert slack * median * (1 - 1e-6) - 1e-8 <= limit
            assert limit <= max(1e-6, slack * max(median, needed)) * (1 + 1e-6) + 1e-8
        else:
            needed = limit / multiple
        seconds.append(lasted)


# ---- the description, and how ranks meet ----


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"rate": 0.0}, "rate above 0"),
        ({"rate": float("inf")}, "rate above 0"),
        ({"mtu": 100}, "mtu of 576"),
        ({"mtu": 70_000}, "mtu of 576"),
        ({"multiple": 0.0}, "multiple above 0"),
        ({"patience": float("nan")}, "patience above 0"),
    ],
)
def test_what_cannot_be_is_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        Datagrams(**settings)


def test_ranks_may_differ_in_their_interface_alone():
    assert Datagrams(interface="eth0").account() == Datagrams(interface="10.0.0.1").account()
    assert Datagrams(rate=1e9).account() != Datagrams().account()


def test_who_cannot_listen_is_told_of_on_every_rank():
    def one_rank(grid):
        interface = "127.0.0.1" if grid.world.rank else "192.0.2.1"  # an address that nobody has: RFC 5737
        Datagrams(interface=interface).open(5, grid.world, True, "refused")

    with pytest.raises(threads.RanksFailed) as failed:
        threads.run(3, 1, one_rank)
    for error in failed.value.errors:
        assert isinstance(error, OSError) and "rank 0 cannot listen at 192.0.2.1" in str(error)


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as made:
            made.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no ::1")
@pytest.mark.parametrize("offload", [True, False])
def test_over_ipv6_it_is_the_same(offload):
    """Datagrams of full packets, with headers 20 bytes longer; and a rank that comes back to its address."""
    size, count = 30_000, 3
    transport = Datagrams("::1", slack=LONG, least=LONG, patience=LONG, offload=offload)
    own = simulation.vectors(count, size)

    def one_rank(grid):
        channel = transport.open(size, grid.world, True, "six")
        made = [channel.average(tf.constant(own[grid.world.rank]), tf.constant(round, tf.int64)) for round in (0, 1)]
        seen, segment = channel.report()["datagrams"], channel.recorded().segment
        channel.close()
        transport.reopen(channel.ticket).close()
        return made, seen, segment, channel.ticket.ends

    for made, seen, segment, ends in threads.run(count, 1, one_rank):
        for averaged in made:
            same_bits(averaged.vector.numpy(), mean_of(own, 0b111))
            np.testing.assert_array_equal(averaged.arrived, averaged.expected)
        assert seen["accepted"] > 0 and not any(seen[fate] for fate in ("bad_size", "bad_header", "bad_tag")), seen
        assert segment == (1500 - 48 - 56) // 4
        assert [end.address for end in ends] == ["::1"] * count


def test_addresses_must_be_of_one_kind():
    def one_rank(grid):
        Datagrams(interface="127.0.0.1" if grid.world.rank else "::1").open(5, grid.world, True, "mixed")

    with pytest.raises(threads.RanksFailed, match="IPv4 or IPv6"):
        threads.run(2, 1, one_rank)


def test_a_closed_channel_says_so(ranks):
    group = ranks(1, 4)
    own = tf.zeros([4])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="4 elements|must be equal"):
        group.channels[0].average(tf.zeros([5]), tf.constant(0, tf.int64))
    with pytest.raises(tf.errors.AbortedError, match="round from 0"):
        group.channels[0].average(own, tf.constant(-1, tf.int64))
    group.channels[0].average(own, tf.constant(0, tf.int64))
    group.channels[0].close()
    assert group.channels[0].report() == {} and group.channels[0].recorded() is None
    with pytest.raises((tf.errors.AbortedError, tf.errors.InvalidArgumentError), match="open channel|closed"):
        group.channels[0].average(own, tf.constant(1, tf.int64))


def test_a_rank_that_comes_back_needs_its_ticket_and_its_port():
    transport = Datagrams(interface="127.0.0.1", least=LONG, patience=LONG)
    (grid,) = threads.grids(1, 1)
    channel = transport.open(3, grid.world, False, "lone")
    assert channel.ticket.secret not in repr(channel.ticket)
    with pytest.raises(OSError, match="this was its former address"):
        transport.reopen(channel.ticket)
    channel.close()
    again = transport.reopen(channel.ticket)
    assert again.ticket.ends[0].start > channel.ticket.ends[0].start
    same_bits(again.average(tf.ones([3]), tf.constant(0, tf.int64)).vector.numpy(), np.ones(3, np.float32))
    again.close()
