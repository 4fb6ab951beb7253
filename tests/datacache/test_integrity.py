"""Hundreds of killed processes and flipped bits: a sample that is served is right, or it comes from a lower level."""

import mmap
import os
import random
import signal
import struct
import threading
import time

import numpy as np
import pytest

import datacache
from datacache.disk import DiskLevel
from datacache.levels import DamagedRecordError, Record
from datacache.native import library
from datacache.slab import Slab, needed
from datacache.tmpfs import TmpfsLevel
from datacache.world import World
from tests.datacache import members
from tests.datacache.node import free_addresses
from tests.datacache.test_cache import (  # noqa: F401 - fixtures
    COUNT,
    SIDE,
    assert_right,
    decode,
    expected,
    images,
    options,
    read,
)
from tests.datacache.test_levels import record

KILLS = {"Slab": 45, "DiskLevel": 45, "DataCache": 35, "TmpfsLevel": 45, "serve": 35}
FLIPS = {"payload": 240, "label": 120, "checksum": 120, "state": 40, "offset": 40, "length": 40}
FLIPS_ON_DISK = {"payload": 280, "label": 60, "checksum": 60}
RECORDS, LENGTH = 8, 200_000  # long enough for a kill to find the writer in the middle of one

OPEN = {
    "Slab": lambda path: Slab(path / "shm", "key", range(RECORDS), needed(RECORDS, LENGTH)),
    "DiskLevel": lambda path: DiskLevel(path / "disk", 16 << 20),
    "TmpfsLevel": lambda path: TmpfsLevel(path / "shm", "key", 16 << 20),
}


# ---- kill -9 ----


def killed_at(moment, work):
    """Runs work(tell) in a process that kills itself `moment` seconds after `tell` was called."""
    wait_for_death(start_killing_itself(moment, work))


def wait_for_death(child):
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def start_killing_itself(moment, work):
    """Starts the process of `killed_at` and returns its process id."""
    child = os.fork()
    if child:
        return child
    started = threading.Event()

    def kill():  # runs when the other thread is in native code and has released Python's lock
        started.wait()
        end = time.perf_counter() + moment
        while time.perf_counter() < end:
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill).start()
    try:
        work(started.set)
        started.set()
        signal.pause()
    finally:
        os._exit(1)  # an error in work fails the test


class Readers:
    """Another process that opens the files and reads all of them, again and again; it exits on wrong bytes."""

    def __init__(self, read_turn):
        self._turn = mmap.mmap(-1, 8)
        parent = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            try:
                while (turn := struct.unpack("q", self._turn[:])[0]) >= 0 and os.getppid() == parent:
                    read_turn(turn)
                os._exit(0)
            finally:
                os._exit(1)

    def go_to(self, turn):
        self._turn[:] = struct.pack("q", turn)

    def end(self):
        self.go_to(-1)
        assert os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1]) == 0


def assert_whole(kept, at_least=()):
    """Asserts that each record is right or missing."""
    for index in range(RECORDS):
        found = kept.get(index)
        assert found == record(index, LENGTH) or (found is None and index not in at_least)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPEN)
def test_killed_at_any_moment_of_a_put(name, tmp_path):
    numbers = random.Random(name)

    def read_turn(turn):
        kept = OPEN[name](tmp_path / str(turn))
        assert_whole(kept)
        kept.close()

    (tmp_path / "0").mkdir()
    readers = Readers(read_turn)
    for turn in range(KILLS[name]):
        (tmp_path / str(turn)).mkdir(exist_ok=True)
        readers.go_to(turn)
        last, moment = numbers.randrange(RECORDS), numbers.uniform(0, 300e-6)

        def put(tell, path=tmp_path / str(turn), last=last):
            kept = OPEN[name](path)
            for index in range(RECORDS):
                if index == last:
                    tell()
                kept.put(index, record(index, LENGTH))

        killed_at(moment, put)
        kept = OPEN[name](tmp_path / str(turn))
        assert_whole(kept)
        for index in range(RECORDS):
            assert kept.get(index) is not None or kept.put(index, record(index, LENGTH))
        assert_whole(kept, at_least=range(RECORDS))
        kept.close()
    readers.end()


@pytest.mark.thorough
def test_killed_at_any_moment_of_a_run(images, options):  # noqa: F811
    numbers, source = random.Random("run"), datacache.ImageFolder(images[0])
    wanted = [expected(images, epoch) for epoch in range(2)]
    options["local_dir"].mkdir()

    def opened(turn):
        return datacache.DataCache(
            source, **{**options, "local_dir": options["local_dir"] / str(turn)}, keep_decoded=turn % 2 == 0, workers=2
        )

    def read_turn(turn):
        with opened(turn) as cache:
            for epoch in range(2):
                found = read(cache, epoch)
                assert all(np.array_equal(*pair) for pair in zip(found, wanted[epoch], strict=True))

    readers = Readers(read_turn)
    for turn in range(KILLS["DataCache"]):

        def run(tell, turn=turn):
            tell()
            with opened(turn) as cache:
                for epoch in range(2):
                    read(cache, epoch)

        readers.go_to(turn)
        killed_at(numbers.uniform(0, 0.08), run)
    readers.end()
    with opened(turn) as cache:
        assert_right(read(cache, 0), images, 0)
        assert cache._opened.store.quarantine.entries() == []
    assert list(options["memory_dir"].rglob("*.slab")) == []


class Nodes:
    """Two nodes on this machine, opened again and again with the same addresses and directories."""

    def __init__(self, images, options):  # noqa: F811
        self._source, self._options = datacache.ImageFolder(images[0]), options
        self._peers = tuple(free_addresses(2))

    def open(self, node, turn):
        """Opens a node; every fourth turn starts with empty levels, the three after it with those left behind."""
        world = World(node, 2, node, 2, self._peers, self._peers[node], b"the secret of this test")
        places = {name: self._options[name] / f"{turn // 4}-{node}" for name in ("local_dir", "memory_dir")}
        settings = {**self._options, **places, "world": world, "decode": decode_large}
        return datacache.DataCache(self._source, **settings, workers=2, peer_timeout=60)

    def serve(self, turn, answer, tell):
        """Serves as node 1, and calls `tell` when it starts this answer."""
        node = self.open(1, turn)
        gather, answers = node._opened.levels[-1].gather, []

        def told(*arguments):
            answers.append(None)
            if len(answers) == answer:
                tell()
            return gather(*arguments)

        node._opened.serving._server._shelf = node._opened.serving._server._shelf._replace(gather=told)
        signal.pause()


def decode_large(payload):
    """Decodes to samples so large that a kill finds the server in the middle of sending one."""
    return np.tile(decode(payload), (32, 32, 1))


def read_as_node_0(nodes, turn, images):  # noqa: F811
    """Reads two epochs, compares, and returns how many samples came from node 1, and how many node 1 owns."""
    own = 0
    with nodes.open(0, turn) as cache:
        for epoch in range(2):
            found = [np.concatenate(part) for part in zip(*cache.batches(2, epoch), strict=True)]
            schedule, (samples, labels) = cache.schedule(2, epoch), expected(images, epoch)
            mine = np.concatenate([np.arange(*schedule.span(step, 0)) for step in range(len(schedule))])
            np.testing.assert_array_equal(found[0], np.tile(samples[mine], (1, 32, 32, 1)))
            np.testing.assert_array_equal(found[1], labels[mine])
            own += int((schedule.order[mine] >= COUNT // 2).sum())
        return cache.counters.numbers().get("samples.peers", 0), own


@pytest.mark.thorough
def test_killed_at_any_moment_of_an_answer(images, options):  # noqa: F811
    """The server dies while a client reads batches; the next one serves without any cleaning up."""
    numbers, nodes = random.Random("serve"), Nodes(images, options)
    for name in ("local_dir", "memory_dir"):
        options[name].mkdir()
    for turn in range(KILLS["serve"]):
        answer, moment = numbers.randint(1, 6), numbers.uniform(0, 1e-3)

        def serve_until_killed(tell, turn=turn, answer=answer):
            nodes.serve(turn, answer, tell)

        server = start_killing_itself(moment, serve_until_killed)
        read_as_node_0(nodes, turn, images)
        wait_for_death(server)
        server = start_killing_itself(0, lambda tell, turn=turn: nodes.serve(turn, -1, tell))
        from_peers, all_of_it = read_as_node_0(nodes, turn, images)
        assert from_peers == all_of_it > 0
        os.kill(server, signal.SIGKILL)
        wait_for_death(server)


# ---- flipped bits ----

WORDS = {"state": 0, "offset": 8, "length": 16, "checksum": 24, "label": 32}  # of an entry of the slab
shares = pytest.mark.parametrize("share", [20, pytest.param(1, marks=pytest.mark.thorough)], ids=["few", "all"])
HEAD = {"checksum": (0, 8), "label": (8, 8), "payload": (16, None)}  # of a record in LMDB


@shares
def test_flipped_bits_in_memory_are_never_served(images, options, share):  # noqa: F811
    """One flip at a time in an otherwise intact slab; a whole epoch is read after each."""
    numbers, size = random.Random(0), SIDE * SIDE * 3
    table = library().datacache_slab_overhead(COUNT)
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options) as cache:
        read(cache, 0)
        (path,) = options["memory_dir"].rglob("*.slab")
        whole = path.read_bytes()
        for kind in (kind for kind, count in FLIPS.items() for _ in range(count // share)):
            index = numbers.randrange(COUNT)
            entry = 4096 + 40 * index
            start, length = (entry + WORDS[kind], 8) if kind in WORDS else place_in(whole, entry, table, size)
            before = cache.counters.numbers()
            members.flip(path, start + numbers.randrange(length), 1 << numbers.randrange(8))
            assert_right(read(cache, 1), images, 1)
            after = cache.counters.numbers()
            if kind in ("payload", "label", "checksum"):
                assert after["damaged.memory"] == before.get("damaged.memory", 0) + 1, (kind, index)
                assert after["samples.disk"] == before.get("samples.disk", 0) + 1
            with open(path, "r+b") as file:
                file.write(whole)
        assert cache.counters.numbers()["samples.source"] == COUNT


def place_in(slab, entry, table, size):
    offset, length = struct.unpack_from("<QQ", slab, entry + 8)
    assert offset >= table and length == size
    return offset, length


@shares
def test_flipped_bits_on_disk_are_never_served(images, options, share):  # noqa: F811
    numbers = random.Random(1)
    payloads = [content for _, content in images[1]]
    samples = [decode(payload) for payload in payloads]
    with datacache.DataCache(datacache.ImageFolder(images[0]), **options, memory_bytes=0) as cache:
        read(cache, 0)
        labels = [cache.fetch(index)[1] for index in range(COUNT)]
        (path,) = options["local_dir"].rglob("source/data.mdb")
        for kind in (kind for kind, count in FLIPS_ON_DISK.items() for _ in range(count // share)):
            index, (start, length) = numbers.randrange(COUNT), HEAD[kind]
            position, mask = start + numbers.randrange(length or len(payloads[index])), 1 << numbers.randrange(8)
            for head in members.places_of(path, index, Record(payloads[index], labels[index])):
                members.flip(path, head + position, mask)
            before = cache.counters.numbers()
            sample, label = cache.fetch(index)
            assert np.array_equal(sample, samples[index]) and label == labels[index]
            after = cache.counters.numbers()
            assert after["damaged.disk"] == before.get("damaged.disk", 0) + 1, (kind, index)
            assert after["samples.source"] == before["samples.source"] + 1
        for epoch in range(2):
            assert_right(read(cache, epoch), images, epoch)
        assert len(cache._opened.store.quarantine.entries()) == sum(count // share for count in FLIPS_ON_DISK.values())


def test_a_record_in_the_place_of_another_is_noticed(tmp_path):
    """Swaps complete entries, each of which is valid in itself."""
    kept = Slab(tmp_path, "key", range(2), needed(2, 3000))
    for index in range(2):
        kept.put(index, record(index))
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[4096:4136], content[4136:4176] = content[4136:4176], content[4096:4136]
    with open(path, "r+b") as file:
        file.write(content)
    for index in range(2):
        with pytest.raises(DamagedRecordError):
            kept.get(index)
    kept.close()
