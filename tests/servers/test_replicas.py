"""Servers that die, and deputies that take over: how much may be lost, and that nothing is applied twice."""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import pytest

from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.quantizers import TwoBits
from hvd_sparse.compression.selectors import Quantized, TopK
from hvd_sparse.servers import ServerLostError, connections
from hvd_sparse.servers.applying import ServedPieces
from hvd_sparse.servers.joining import serve
from hvd_sparse.servers.pushing import cut
from hvd_sparse.servers.replicas import Deputy, Replica, Replicas, deputy_of, guarded_by, payload_of, state_of
from hvd_sparse.servers.returning import come_back
from hvd_sparse.servers.rules import Together
from hvd_sparse.servers.state import Standings, State
from hvd_sparse.transport.meeting import Ticket
from tests.parallel import launch
from tests.servers import dying_rank
from tests.servers import members as job
from tests.servers.simulated import variables, whole_of
from tests.simulation import same_bits

SIZE = whole_of(1).size
INSURED = job.ASYNCHRONOUS._replace(replicas=Replicas(age=4, lease=1.0))
SPARSE = INSURED._replace(push=ErrorFeedback(TopK(0.3)), pull=Quantized(TopK(0.5), TwoBits()), lazy=True)
ONES = np.ones(SIZE, np.float32)


def die(member) -> None:
    """Ends a rank as if its process were gone."""
    member.abandon()


@pytest.fixture
def told(caplog, monkeypatch):
    """What is logged; by default our logger prints, and passes nothing on."""
    monkeypatch.setattr(logging.getLogger("hvd_sparse"), "propagate", True)
    return caplog


@pytest.mark.parametrize("settings", [pytest.param(INSURED, marks=pytest.mark.thorough), SPARSE])
def test_a_deputy_takes_over_and_no_more_is_lost_than_was_said(settings, told):
    """Plain descent at rate 1 on integers: what is missing from the sum of all pushes is what was lost."""
    ranks, steps = 3, 12
    members = job.started(ranks, settings)
    start = members[0].connections.published()
    pushes = [job.pushing(member, settings) for member in members]
    begun = [0] * ranks

    def train(rank: int) -> None:
        for _ in range(steps):
            if rank == 1 and begun[1] == steps // 2:
                die(members[1])
                return
            begun[rank] += 1
            job.step(members[rank], pushes[rank], ONES, rate=1.0)

    job.each(ranks, train)
    living = [members[0], members[2]]
    for client, (number, host) in itertools.product((0, 2), enumerate((0, 2, 2))):
        has = members[client].connections.copy.of(number)
        same_bits(has, members[host]._service._hosted[number].shard._copies.of(client))
    final: dict[int, np.ndarray] = {}

    def end(rank: int) -> None:
        final[rank] = living[rank].finish()

    shard = members[1].shards[1]
    places = slice(shard.offset, shard.offset + shard.size)
    unsent = sum(each.waiting().numpy() for each in pushes)
    job.each(2, end)
    assert final[0].tobytes() == final[1].tobytes()
    missing = np.float32(sum(begun)) - unsent - (start - final[0])
    others = np.delete(missing, np.arange(SIZE)[places])
    np.testing.assert_allclose(others, 0, atol=1e-4, err_msg="other servers have lost nothing")
    most = settings.replicas.age * ranks
    assert (missing[places] > -1e-4).all(), "nothing was applied twice"
    assert (missing[places] < most + 1e-4).all()
    assert "the server of rank 1 was lost, and rank 2 has taken over its part" in told.text
    assert all(member.connections.updates_lost <= settings.replicas.age for member in living)


@pytest.mark.thorough
def test_synchronous_servers_go_on_without_a_rank_and_its_server():
    settings = SPARSE._replace(rule=Together())
    members, ranks = job.started(3, settings), (0, 2)
    pushes = {rank: job.pushing(members[rank], settings) for rank in ranks}
    die(members[1])
    living = [members[rank] for rank in ranks]

    def train(place: int) -> None:
        for _ in range(6):
            job.step(living[place], pushes[ranks[place]], ONES)

    job.each(2, train)
    assert living[0].connections.copy.values.tobytes() == living[1].connections.copy.values.tobytes()
    final = job.finish(living)
    assert final[0].tobytes() == final[1].tobytes()


def test_who_was_stopped_for_long_is_deposed_and_goes_on_as_a_client():
    """The server is silent for two leases and then resumes."""
    members = job.started(3, INSURED)
    pushes = [job.pushing(member, INSURED) for member in members]
    for rank in range(3):
        job.step(members[rank], pushes[rank], ONES)
    members[1]._replicator.close()
    lease = INSURED.replicas.lease
    time.sleep(1.1 * lease)
    assert not members[1].shard._may_apply(), "its lease has ended"
    waiting = threading.Thread(target=job.step, args=(members[0], pushes[0], ONES))
    waiting.start()
    time.sleep(lease)
    members[2].connections._begin_again(1)
    members[1]._replicator._tell(time.monotonic())
    waiting.join(30.0)
    for rank in range(3):
        job.step(members[rank], pushes[rank], ONES)
        assert members[rank].connections._places[1] == 2
    final = job.finish(members)
    assert final[0].tobytes() == final[1].tobytes() == final[2].tobytes()


@pytest.mark.thorough
def test_a_server_goes_on_without_its_deputy(told):
    members = job.started(2, INSURED)
    pushes = job.pushing(members[0], INSURED)
    job.step(members[0], pushes, ONES)
    die(members[1])
    for _ in range(3 * INSURED.replicas.age):
        job.step(members[0], pushes, ONES)
    assert "continues without a replica" in told.text
    assert members[0].finish() is not None


@pytest.mark.thorough
def test_two_that_are_gone_end_the_job():
    members = job.started(3, INSURED)
    pushes = job.pushing(members[0], INSURED)
    job.step(members[0], pushes, ONES)
    die(members[1])
    die(members[2])
    with pytest.raises(ServerLostError, match="restart the job from its last checkpoint"):
        for _ in range(100):
            job.step(members[0], pushes, ONES)
    die(members[0])


def test_all_that_does_not_answer_is_told(monkeypatch):
    """An attempt ends with the first failure: a dead server fails before one that says that it no longer serves."""
    monkeypatch.setattr(connections, "_PAUSE", 0.05)
    members = job.started(3)
    with members[1]._service.lock:
        members[1]._service.depose()
    members[2]._server.close()
    with pytest.raises(ServerLostError, match="server of rank 1 .* serves this part .*; The server of rank 2 does not"):
        job.step(members[0], job.pushing(members[0], job.ASYNCHRONOUS), ONES)
    for member in members:
        die(member)


def test_a_server_makes_no_more_updates_than_its_replica_may_lack():
    members = job.started(2, INSURED)
    pushes = job.pushing(members[0], INSURED)
    shard = members[1].shard
    for _ in range(20):
        job.step(members[0], pushes, ONES)
        assert shard.version <= shard._limit
    members[1]._replicator.close()
    shard.insure(shard.version, time.monotonic() + 60.0)
    assert not shard._may_apply()
    for member in members:
        die(member)


def test_a_replica_is_what_it_was_made_of():
    random = np.random.default_rng(0)
    arrays = {"parameters": random.random(5).astype("f4"), "number0": np.asarray(7), "momentums": np.ones(5, "f4")}
    state = State(arrays, random.random(5).astype("f4"), 2, 11, 30)
    standings = Standings([3, 4, 5], [0, 1, 0], [1, 0, 0])
    replica = Replica(11, 30, 2, payload_of(state, standings))
    found, stood = state_of(replica, state, 3)
    assert stood == standings and (found.version, found.pushes, found.gathered_pushes) == (11, 30, 2)
    np.testing.assert_array_equal(found.gathered, state.gathered)
    for name, value in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], value)
    with pytest.raises(ValueError, match="Expected a replica of"):
        state_of(replica._replace(payload=replica.payload[:-1]), state, 3)


def test_a_deputy_waits_for_two_leases_and_knows_what_is_too_old(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    deputy = Deputy(Replicas(age=10, lease=5.0))
    now[0] = 200.0
    assert deputy.objection(0) == "", "it has no replica"
    assert deputy.hears(Replica(20, 0, 0, b""))
    now[0] = 204.0
    deputy.is_awake()
    now[0] = 209.0
    assert deputy.objection(20) == ""
    now[0] = 211.0
    assert deputy.objection(30) is None
    now[0] = 300.0
    assert deputy.objection(30) == "", "it was stopped itself, and may have heard nothing for that reason"
    for now[0] in range(301, 311):
        deputy.is_awake()
    assert deputy.objection(30) is None
    assert "has 20 of at least 31 updates" in deputy.objection(31)
    assert deputy.hears(None) and deputy.objection(20) == ""
    deputy.has_taken_over = True
    assert not deputy.hears(Replica(21, 0, 0, b""))


def test_every_shard_has_one_deputy():
    for ranks in range(2, 7):
        assert sorted(shard for rank in range(ranks) for shard in guarded_by(rank, ranks)) == list(range(ranks))
        assert all(deputy_of(shard, ranks) != shard for shard in range(ranks))


@pytest.mark.thorough
def test_ranks_are_killed_and_stopped_at_random():
    """`python -m tests.servers.kills` runs any number of rounds; in a subprocess, since it forks."""
    command = [sys.executable, "-m", "tests.servers.kills", "--rounds", "6", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "6 rounds" in done.stdout


@pytest.mark.thorough
def test_a_second_death_is_survived_or_ends_the_job_for_all():
    """If both parts have live replicas, the others continue; if one has none, all others get an error."""
    command = [sys.executable, "-m", "tests.servers.second_deaths"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("ranks 1 and") == 4


@pytest.mark.thorough
def test_a_rank_of_horovod_s_that_is_killed_is_survived_and_comes_back(tmp_path):
    """A killed process's parent exits with status 0, as horovodrun would otherwise end the others, and replaces it."""
    ended = launch.horovodrun(3, ["-m", "tests.keep_rank", "tests.servers.dying_rank", str(tmp_path)], limit=200.0)
    assert ended.status == 0, ended.output
    told = [json.loads(line.partition("told ")[2]) for line in ended.output.splitlines() if "told {" in line]
    assert sorted(each["rank"] for each in told) == [0, 1, 2], ended.output
    assert len({each["weights"] for each in told}) == 1 and all(each["lost"] <= dying_rank.AGE for each in told)
    assert "rank 2 has taken over its part of the parameters" in ended.output


class Asked:
    """A request to a service, without a link; `told` is the kind of its answer."""

    def __init__(self, asker, kind, **fields):
        self.asker, self.kind, self.fields, self.payload, self.told = asker, kind, fields, b"", None

    def answer(self, kind, payload=b"", **fields):
        self.told = kind


def test_a_witness_knows_who_is_gone_unless_it_was_stopped_itself(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    shards = cut(whole_of(3), 3)
    begin = variables(np.random.default_rng(0))
    witness = serve(lambda shard: ServedPieces(keras.optimizers.SGD(1.0), begin, shards[shard]), shards, 2, INSURED)

    def told(asker, kind, **fields):
        asked = Asked(asker, kind, **fields)
        witness.handle(asked)
        return asked.told

    def listens(seconds):
        for _ in range(10):
            now[0] += seconds / 10
            witness.wakes()

    assert told(0, "heard", rank=1) == "failed", "it has not listened for two leases yet"
    listens(3.0)
    assert told(0, "heard", rank=1) == "not_yet"
    assert told(1, "replica", shard=1, there=False, version=0, pushes=0, gathered=0) == "done"
    listens(1.9)
    assert told(0, "heard", rank=1) == "done"
    listens(0.2)
    assert told(0, "heard", rank=1) == "not_yet"
    assert told(1, "replica", shard=1, there=False, version=0, pushes=0, gathered=0) == "done"
    now[0] += 30.0
    assert told(0, "heard", rank=1) == "failed", "it was stopped; what rank 1 has sent may be in the queue"
    listens(1.9)
    assert told(0, "heard", rank=1) == "failed"
    listens(0.2)
    assert told(0, "heard", rank=1) == "not_yet"
    assert told(1, "returned") == "done" and told(0, "heard", rank=1) == "not_yet"


@pytest.mark.thorough
def test_who_comes_back_goes_on_and_counts_as_no_deputy():
    members = job.started(3, INSURED)
    start, steps = members[0].connections.published(), 3 * INSURED.replicas.age
    die(members[1])
    guest = come_back(members[1].shards, Ticket.from_bytes(members[1].ticket.to_bytes()), INSURED)
    assert guest.connections._places[1] == 2
    assert members[0]._replicator._deputy_is_gone(), "the witness has heard of the rank, and knows"
    living = [members[0], guest, members[2]]

    def train(place: int) -> None:
        pushes = job.pushing(living[place], INSURED)
        for _ in range(steps):
            job.step(living[place], pushes, ONES, rate=1.0)

    job.each(3, train)
    final = job.finish(living)
    assert final[0].tobytes() == final[1].tobytes() == final[2].tobytes()
    np.testing.assert_allclose(start - final[0], 3 * steps, atol=1e-4)
    assert guest.telemetry()["step"] == steps


def test_a_ticket_is_whole_and_its_secret_is_not_shown():
    ticket = Ticket(1, ("127.0.0.1:1", "127.0.0.1:2"), b"0123456789")
    assert Ticket.from_bytes(ticket.to_bytes()) == ticket
    assert "0123" not in repr(ticket) and ticket.secret.hex() not in repr(ticket)
    told = ticket.to_bytes()
    for other in (told[:-3], b"", b"[]", b"7", b'[2, ["a:1"], "00"]', b'["1", ["a:1", "b:2"], "00"]', b"\xff"):
        with pytest.raises(ValueError, match="Expected a complete ticket from hvd.servers.ticket"):
            Ticket.from_bytes(other)


def test_nobody_comes_back_to_a_part_that_is_lost():
    with pytest.raises(ValueError, match="pass replicas=1 on all ranks"):
        come_back([], Ticket(0, ("127.0.0.1:1",), b""), job.ASYNCHRONOUS)
