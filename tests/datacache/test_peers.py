"""Nodes that serve each other, with real processes and sockets; batches are the same whatever happens to a peer."""

import contextlib
import os
import signal
import socket
import time
import zlib

import pytest

import datacache
from datacache import files
from datacache.peers.client import Client
from datacache.peers.server import Server, Shelf
from datacache.peers.start import Standby
from tests.datacache import node, peer_actors
from tests.datacache.node import BATCH, COUNT, Node
from tests.datacache.peer_actors import BYTES, DATA, SECRET, caller, nothing, received, record


@pytest.fixture
def start(tmp_path):
    """Starts processes of nodes, and ends the remaining ones."""
    started = []

    def one(*arguments, **settings):
        started.append(Node(tmp_path, *arguments, **settings))
        return started[-1]

    yield one
    for each in started:
        each.end()


def steps(ranks):
    """The number of batches in an epoch."""
    return COUNT // (BATCH * ranks)


def read_all(nodes, epoch):
    """All nodes read an epoch at the same time; then it is checked."""
    for each in nodes:
        each.tell(f"read {epoch} {steps(each.ranks)}")
    for each in nodes:
        each.hear()
    for each in nodes:
        each.assert_read(epoch)


@pytest.mark.parametrize(
    "nodes, ranks, settings",
    [(2, 2, {}), (2, 4, {}), (3, 3, {}), (2, 2, {"encrypt": True}), (2, 2, {"memory_bytes": 0})],
    ids=["two nodes", "two ranks each", "three nodes", "CURVE", "no memory"],
)
def test_all_nodes_together_read_each_sample_once(nodes, ranks, settings, start, tmp_path):
    peers = node.free_addresses(nodes)
    made = [start(peers, rank, ranks, **settings) for rank in range(ranks)]
    assert [each.hear() for each in made] == ["ready"] * ranks
    for epoch in range(2):
        read_all(made, epoch)
    assert sorted(node.reads(tmp_path)) == list(range(COUNT))
    numbers = [each.ask("numbers") for each in made]
    from_peers = sum(each["samples.peers"] for each in numbers)
    assert from_peers == sum(each.get("served.samples", 0) for each in numbers) > COUNT / 2
    assert all("failures.peers" not in each and "refused.peers" not in each for each in numbers)


def test_after_close_no_thread_and_no_port_is_left(start):
    peers = node.free_addresses(2)
    made = [start(peers, rank) for rank in range(2)]
    assert [each.hear() for each in made] == ["ready"] * 2
    read_all(made, 0)
    for each, address in zip(made, peers, strict=True):
        host, port = address.split(":")
        socket.create_connection((host, int(port))).close()
        assert each.ask("close") == []
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_that_is_lost_in_mid_epoch_changes_nothing(sent, start, tmp_path):
    peers = node.free_addresses(2)
    made = [start(peers, rank, peer_timeout=10) for rank in range(2)]  # long enough that no live peer seems lost
    assert [each.hear() for each in made] == ["ready"] * 2
    for each in made:
        each.tell("read 0 4")
    for each in made:
        each.hear()
    os.kill(made[1].process.pid, sent)
    made[0].ask(f"read 0 {steps(2) - 4}")
    made[0].assert_read(0)
    made[0].ask(f"read 1 {steps(2)}")
    made[0].assert_read(1)
    numbers = made[0].ask("numbers")
    assert numbers["failures.peers"] == 1 and numbers["samples.peers"] > 0
    assert made[0].errors().count("is unavailable") == 1


def test_a_stopped_peer_is_asked_again_when_it_goes_on(start):
    peers = node.free_addresses(2)
    made = [start(peers, rank, peer_timeout=2) for rank in range(2)]
    assert [each.hear() for each in made] == ["ready"] * 2
    os.kill(made[1].process.pid, signal.SIGSTOP)
    made[0].ask(f"read 0 {steps(2)}")
    made[0].assert_read(0)
    assert "samples.peers" not in made[0].ask("numbers")
    os.kill(made[1].process.pid, signal.SIGCONT)
    assert epochs_until_peers_answer(made[0]) > 0


def epochs_until_peers_answer(one, ranks=2, first=1):
    """Reads epochs until samples come from peers again."""
    before = one.ask("numbers").get("samples.peers", 0)
    for epoch in range(first, first + 200):
        one.ask(f"read {epoch} {steps(ranks)}")
        one.assert_read(epoch)
        if one.ask("numbers").get("samples.peers", 0) > before:
            return epoch
        time.sleep(0.3)
    return 0


def served(one):
    return one.ask("numbers").get("served.samples", 0)


@pytest.mark.parametrize("way", ["kill", "close"])
def test_when_the_process_that_serves_ends_another_of_its_node_takes_over(way, start):
    """Two nodes of two ranks; both ranks of node 0 read while node 1's server ends."""
    peers = node.free_addresses(2)
    made = [start(peers, rank, 4, peer_timeout=2) for rank in range(4)]
    assert [each.hear() for each in made] == ["ready"] * 4
    read_all(made, 0)
    (serving,) = (each for each in made[2:] if served(each))
    (standing_by,) = (each for each in made[2:] if each is not serving)
    for each in made[:2]:
        each.tell(f"read 1 {steps(4)}")
    if way == "kill":
        os.kill(serving.process.pid, signal.SIGKILL)
    else:
        serving.ask("close")
    for each in made[:2]:
        each.hear()
        each.assert_read(1)
    for each in made[:2]:
        assert epochs_until_peers_answer(each, ranks=4, first=2) > 0
    assert served(standing_by) > 0
    read_all([*made[:2], standing_by], 300)
    for each in [*made[:2], standing_by]:
        assert "Traceback" not in each.errors() and "rror" not in each.errors()


def test_who_stands_by_waits_until_lock_and_port_are_free(place, tally, tmp_path, caplog):
    def look_until(true):
        for _ in range(1200):
            if true():
                return True
            time.sleep(0.1)
        return False

    number, (host, port) = zlib.crc32(place.encode()), place.split(":")
    lock = files.take(tmp_path / "locks", number)
    made = []

    def start_server():
        made.append(Server(place, 1, DATA, SECRET, Shelf(range(peer_actors.COUNT), BYTES, nothing, record), tally))
        return made[-1]

    standby = Standby(tmp_path / "locks", place, start_server)
    assert made == []
    with socket.create_server((host, int(port))):
        os.close(lock)
        assert look_until(lambda: "cannot yet take over from the one that served: [Errno 98] Peers" in caplog.text)
    assert look_until(lambda: made)
    assert files.take(tmp_path / "locks", number) is None
    client = Client(["127.0.0.1:1", place], caller(tally))
    assert received(client, [3, 7]) == {3: record(3), 7: record(7)}
    client.close()
    for _ in range(2):
        standby.close()
    os.close(files.take(tmp_path / "locks", number))


def test_two_caches_of_one_source_serve_at_addresses_of_their_own(tmp_path):
    source = datacache.Indexed(node.sample, COUNT, "samples", labels=range(COUNT))
    folders = {"local_dir": tmp_path / "local", "memory_dir": tmp_path / "shm"}
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            peers = node.free_addresses(2)
            world = datacache.World(0, 2, 0, 2, tuple(peers), peers[0], SECRET)
            stack.enter_context(datacache.DataCache(source, node.decode, world=world, **folders))
            host, port = peers[0].split(":")
            socket.create_connection((host, int(port))).close()


def test_a_peer_that_starts_late_is_waited_for(start, tmp_path):
    peers = node.free_addresses(2)
    one = start(peers, 0, peer_timeout=120)
    one.hear()
    one.tell(f"read 0 {steps(2)}")
    time.sleep(1)
    start(peers, 1)
    one.hear()
    one.assert_read(0)
    assert len(set(node.reads(tmp_path))) == len(node.reads(tmp_path))


def test_a_peer_that_starts_too_late_is_found_later(start):
    peers = node.free_addresses(2)
    one = start(peers, 0, peer_timeout=0.5)
    one.hear()
    one.ask(f"read 0 {steps(2)}")
    one.assert_read(0)
    start(peers, 1).hear()
    assert epochs_until_peers_answer(one) > 0


@pytest.mark.parametrize("encrypt", [False, True], ids=["", "CURVE"])
def test_a_wrong_secret_is_refused_and_the_run_goes_on(encrypt, start):
    peers = node.free_addresses(2)
    secrets = [node.SECRET, "not the secret of this job"]
    patience = 2 if encrypt else 20  # with CURVE nothing ever arrives; without it, a refusal arrives at once
    made = [start(peers, rank, secret=secrets[rank], encrypt=encrypt, peer_timeout=patience) for rank in range(2)]
    assert [each.hear() for each in made] == ["ready"] * 2
    read_all(made, 0)
    for each in made:
        told = each.errors()
        assert "samples.peers" not in each.ask("numbers")
        assert not any(secret in told for secret in secrets)
        if encrypt:
            assert "with CURVE, also where the secrets differ" in told
        else:
            assert "it refused this process's secret: use the same on all nodes" in told
            assert "refused a peer that does not know this job's secret" in told


def test_a_peer_with_other_data_is_refused(start):
    peers = node.free_addresses(2)
    made = [start(peers, rank, decode=str(rank)) for rank in range(2)]
    assert [each.hear() for each in made] == ["ready"] * 2
    read_all(made, 0)
    for each in made:
        assert "samples.peers" not in each.ask("numbers")
        assert "it has other data, or decodes it differently" in each.errors()


def test_an_address_that_is_taken_is_an_error(start):
    peers = node.free_addresses(2)
    made = [start(peers, 0), start(peers[::-1], 1)]
    assert sorted(each.process.stdout.readline() for each in made) == ["", '"ready"\n']
    made.sort(key=lambda each: each.errors())
    assert made[1].process.wait() != 0
    assert f"Peers cannot be served at {peers[0]}" in made[1].errors() and "a port that is free" in made[1].errors()
