"""Sharded servers over real sockets: bounds, shutdown, and how dead or foreign processes are handled."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

import link
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.quantizers import QSGD, OneBit, TwoBits
from hvd_sparse.compression.selectors import Quantized, TopK
from hvd_sparse.compression.thresholds import SampledThreshold
from hvd_sparse.servers import ServerLostError, wire
from hvd_sparse.servers.messages import Entries, MessageError, Push
from hvd_sparse.servers.rules import InOrderOfArrival, Together
from hvd_sparse.servers.settings import Settings
from tests.servers import members as job
from tests.servers.simulated import whole_of
from tests.simulation import same_bits

SIZE = whole_of(1).size
SPARSE = Settings(ErrorFeedback(TopK(0.2)), TopK(0.2), InOrderOfArrival(), None)


CODED = [
    SPARSE._replace(push=ErrorFeedback(Quantized(compressor, quantizer)))
    for compressor in (TopK(0.3), SampledThreshold(0.3))
    for quantizer in (OneBit("threshold"), OneBit("column"), OneBit("global"), TwoBits(), QSGD(4))
]


@pytest.mark.parametrize("settings", CODED)
def test_codes_are_what_they_stand_for_and_travel_in_fewer_bytes(settings):
    members = job.started(2, settings)
    pushes, gradient = job.pushing(members[0], settings), np.linspace(-1, 1, SIZE).astype(np.float32)
    before = members[0].connections.published()
    job.step(members[0], pushes, gradient, rate=1.0)
    sent = gradient - pushes.waiting().numpy()
    np.testing.assert_allclose(before - members[0].connections.published(), sent, atol=1e-6)
    values, quantizer = members[0].connections.sent.values, settings.push.compressor.quantizer
    codes = members[0].connections.sent.bytes - 4 * values
    assert codes != 4 * values and codes <= 2 * (quantizer.code_bytes(values) + 4 * quantizer.scale_count(values))
    job.finish(members)


@pytest.mark.parametrize("rule", [InOrderOfArrival(), Together()])
@pytest.mark.parametrize("quantizer", [OneBit("column"), TwoBits(), QSGD(4)])
def test_copies_follow_by_differences_in_fewer_bytes(quantizer, rule):
    """A client decodes exactly what its server has added to its record of this client's copy, bit for bit."""
    settings = SPARSE._replace(pull=Quantized(TopK(0.8), quantizer), rule=rule)
    members, random = job.started(2, settings), np.random.default_rng(1)
    gradients = random.standard_normal((2, 4, SIZE)).astype(np.float32)

    def train(rank: int) -> None:
        pushes = job.pushing(members[rank], settings)
        for gradient in gradients[rank]:
            job.step(members[rank], pushes, gradient)

    job.each(2, train)
    for client in range(2):
        talk = members[client].connections
        for server in range(2):
            same_bits(talk.copy.of(server), members[server].shard._copies.of(client))
        assert talk.received.bytes < 8 * talk.received.values
    assert len({each.tobytes() for each in job.finish(members)}) == 1, "all of the last parameters, as they are"


def test_differences_that_arrive_damaged_come_again_and_are_added_once():
    settings, answers = SPARSE._replace(pull=Quantized(TopK(0.8), TwoBits())), itertools.count()
    members, random = job.started(2, settings), np.random.default_rng(1)
    talk, pushes = members[0].connections, job.pushing(members[0], settings)
    decode = talk._decoders[1]

    def damaged(coded, places):
        if next(answers) in (0, 2):
            raise MessageError("damaged on the way")  # this ends the connection
        return decode(coded, places)

    talk._decoders[1] = damaged
    for _ in range(3):
        job.step(members[0], pushes, random.standard_normal(SIZE).astype(np.float32))
        for server in range(2):
            same_bits(talk.copy.of(server), members[server].shard._copies.of(0))
    assert next(answers) == 5 and [member.shard.pushes for member in members] == [3, 3]
    job.finish(members)


@pytest.mark.parametrize("settings", [job.ASYNCHRONOUS, SPARSE, SPARSE._replace(rule=Together(), lazy=True)])
def test_all_end_with_the_same_parameters(settings):
    members = job.started(3, settings)
    random = np.random.default_rng(1)
    gradients = random.standard_normal((3, 5, SIZE)).astype(np.float32)

    def train(rank: int) -> None:
        pushes = job.pushing(members[rank], settings)
        for gradient in gradients[rank]:
            job.step(members[rank], pushes, gradient)

    job.each(3, train)
    published = members[0].connections.published()
    final = job.finish(members)
    assert all(each.tobytes() == published.tobytes() for each in final)
    assert all(member.shard.pushes == 15 for member in members)


@pytest.mark.parametrize(
    "chosen, updates",
    [
        pytest.param(SPARSE, 600, id="sparse-600"),
        pytest.param(job.ASYNCHRONOUS, 2_000, id="dense-2000", marks=pytest.mark.thorough),
    ],
)
def test_the_bound_on_staleness_holds(chosen, updates):
    """Ranks of unequal speed, one of which sometimes sleeps, and sometimes for as long as many updates take."""
    ranks, bound = 4, 5
    settings = chosen._replace(rule=InOrderOfArrival(max_staleness=bound))
    members = job.started(ranks, settings, rate=0.001)

    def train(rank: int) -> None:
        random, pushes = np.random.default_rng(rank), job.pushing(members[rank], settings)
        for number in range(updates // ranks):
            job.step(members[rank], pushes, random.standard_normal(SIZE).astype(np.float32), 0.001)
            if rank == 0 and random.random() < 0.1:
                time.sleep(0.002)
            if rank == 0 and number % 75 == 70:
                time.sleep(0.2)
        members[rank].connections.leave()

    job.each(ranks, train)
    for member in members:
        assert member.shard.version == member.shard.pushes == updates
        assert max(member.shard.staleness) <= bound + ranks - 1
    job.finish(members)


def test_a_server_that_is_gone_is_named():
    members = job.started(2)
    members[1]._server.close()
    with pytest.raises(ServerLostError, match="The server of rank 1 does not answer"):
        job.step(members[0], job.pushing(members[0], job.ASYNCHRONOUS), np.ones(SIZE, np.float32))
    with pytest.raises(ServerLostError):
        members[0].finish()
    members[1].abandon()


def test_who_is_gone_is_not_waited_for():
    """Synchronous servers continue without a rank whose connections have ended."""
    settings = job.ASYNCHRONOUS._replace(rule=Together())
    members = job.started(3, settings)
    members[2]._client.close()

    def train(rank: int) -> None:
        pushes = job.pushing(members[rank], settings)
        for _ in range(3):
            job.step(members[rank], pushes, np.ones(SIZE, np.float32))

    job.each(2, train)
    assert members[0].shard.version == 3
    final: dict[int, np.ndarray] = {}

    def end(rank: int) -> None:
        final[rank] = members[rank].finish()

    job.each(2, end)
    assert final[0].tobytes() == final[1].tobytes()
    members[2].abandon()


@pytest.mark.parametrize(
    ("changed", "payload", "reason"),
    [
        ({"push": 7}, Entries(np.ones(6, np.float32)), "out of turn"),
        ({"values": 3}, Entries(np.ones(6, np.float32)), "another length than it says"),
        ({}, Entries(np.full(6, np.nan, np.float32)), "not finite"),
        ({}, Entries(np.ones(1, np.float32), np.array([6], np.int32)), "outside of the shard"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_push_that_does_not_fit_ends_the_connection_and_changes_nothing(changed, payload, reason):
    members = job.started(3)
    before = members[0].connections.published()
    fields = {**wire.push_fields(Push(1, 0.1, payload)), **changed}
    with pytest.raises(link.LinkError):
        members[1]._client.ask(0, "push", wire.payload(payload), check=lambda *_: None, shard=0, **fields).result()
    assert members[0].connections.published().tobytes() == before.tobytes()
    for member in members:
        member.abandon()
