"""Levels: one suite over all in the table; the properties of one level are in test_slab.py and test_disk.py."""

import os
import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from datacache.levels import DamagedRecordError, Nowhere, Quarantine, Record, checksum
from tests.datacache import members

level = pytest.mark.parametrize("make", members.LEVELS.values(), ids=members.LEVELS)


def record(index, length=3000):
    """A record determined by its index alone."""
    return Record(random.Random(index).randbytes(length), 7 * index - 3)


def held(kept, index):
    """Whether a level holds a sample."""
    return kept.holds(np.array([index], np.uint64)).tolist() == [True]


@pytest.fixture
def place(make, tmp_path):
    return make(tmp_path)


@level
class TestLevel:
    def test_gives_back_what_was_put(self, place):
        kept = place.open()
        lengths = [0, 1, 63, 64, 65, 4095, 4096, 9999]
        for index, length in enumerate(lengths):
            assert not held(kept, index) and kept.get(index) is None
            assert kept.put(index, record(index, length))
            assert held(kept, index)
        for index, length in enumerate(lengths):
            assert kept.get(index) == record(index, length)
        assert kept.get(len(lengths)) is None
        assert kept.used_bytes() >= sum(lengths)
        kept.close()
        kept.close()

    def test_opened_twice_in_a_process_it_is_one(self, place):
        one, two = place.open(), place.open()
        one.put(1, record(1))
        assert two.get(1) == record(1)
        one.close()
        assert two.get(1) == record(1)
        two.close()

    def test_a_closed_level_says_so(self, place):
        kept = place.open()
        kept.close()
        for use in (lambda: kept.get(1), lambda: held(kept, 1), lambda: kept.put(1, record(1)), lambda: kept.drop(1)):
            with pytest.raises(ValueError, match="is closed"):
                use()

    def test_gathers_whole_rows(self, place):
        kept = place.open()
        for index in (0, 3, 5):
            kept.put(index, record(index))
        kept.put(6, record(6, 2999))
        indices = np.array([5, 1, 3, 6, 0, 3, 10**6], np.uint64)
        rows, labels = np.zeros((7, 3000), np.uint8), np.zeros(7, np.int64)
        found = kept.gather(indices, rows, labels)
        assert found.tolist() == [True, False, True, False, True, True, False]
        for row in np.flatnonzero(found):
            assert Record(rows[row].tobytes(), labels[row]) == record(int(indices[row]))
        kept.close()

    def test_what_is_dropped_can_be_put_anew(self, place):
        kept = place.open()
        kept.put(4, record(4))
        kept.drop(4)
        kept.drop(5)
        assert not held(kept, 4) and kept.get(4) is None
        assert kept.put(4, record(4)) and kept.get(4) == record(4)
        kept.close()

    def test_what_does_not_fit_is_not_kept_and_the_rest_is_whole(self, place):
        kept = place.open()
        fits = [kept.put(index, record(index, 1_000_000)) for index in range(members.SAMPLES)]
        assert not all(fits)
        for index, fitted in enumerate(fits):
            assert held(kept, index) == fitted
            assert kept.get(index) == (record(index, 1_000_000) if fitted else None)
        kept.close()

    def test_every_flipped_bit_of_a_payload_is_noticed(self, place):
        kept, numbers = place.open(), random.Random(0)
        for index in range(members.SAMPLES):
            kept.put(index, record(index))
        noticed = 0
        for _ in range(300):
            index = numbers.randrange(members.SAMPLES)
            (path,) = place.files()
            start = path.read_bytes().find(record(index).payload)
            with members.flipped(path, start + numbers.randrange(3000), 1 << numbers.randrange(8)):
                rows, labels = np.zeros((1, 3000), np.uint8), np.zeros(1, np.int64)
                noticed += not kept.gather(np.array([index], np.uint64), rows, labels)[0]
                with pytest.raises(DamagedRecordError):
                    kept.get(index)
            assert kept.get(index) == record(index)
        assert noticed == 300
        kept.close()

    def test_threads_and_processes_read_what_others_put(self, place, tmp_path):
        kept = place.open()
        wrong, done = [], threading.Event()

        def read():
            while not done.is_set():
                for index in range(members.SAMPLES):
                    found = kept.get(index)
                    if found not in (None, record(index)):
                        wrong.append(index)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        writer = subprocess.run([sys.executable, "-c", WRITER, type(kept).__name__, str(tmp_path)], timeout=600)
        done.set()
        for reader in readers:
            reader.join()
        assert writer.returncode == 0 and not wrong
        assert all(kept.get(index) == record(index) for index in range(members.SAMPLES))
        kept.close()

    @pytest.mark.thorough
    def test_a_killed_writer_leaves_nothing_in_the_way(self, place):
        """Twenty times, killed after increasing delays in a loop of puts and drops; then the level works as before."""
        for turn in range(20):
            begun, tell = os.pipe()
            writer = os.fork()
            if writer == 0:
                put_and_drop_for_ever(place.open(), tell)
            os.read(begun, 1)
            threading.Event().wait(0.002 * turn)
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
            os.close(begun)
            os.close(tell)
            kept = place.open()
            for index in range(members.SAMPLES):
                assert kept.get(index) in (None, record(index))
            kept.close()
        kept = place.open()
        for index in range(members.SAMPLES):
            assert held(kept, index) or kept.put(index, record(index))
            assert kept.get(index) == record(index)
        kept.close()

    def test_a_forked_child_has_it_too(self, place):
        kept = place.open()
        kept.put(1, record(1))
        child = os.fork()
        if child == 0:
            fine = kept.get(1) == record(1) and kept.put(2, record(2))
            os._exit(0 if fine else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert kept.get(1) == record(1) and kept.get(2) == record(2)
        kept.close()


WRITER = """
import sys, pathlib
from tests.datacache import members
from tests.datacache.test_levels import record
name, path = sys.argv[1:]
kept = members.LEVELS[name](pathlib.Path(path)).open()
for index in range(members.SAMPLES):
    kept.put(index, record(index))
"""


def put_and_drop_for_ever(kept, tell):
    """What a child process of the tests does until it is killed."""
    os.write(tell, b"x")
    while True:
        for index in range(members.SAMPLES):
            kept.put(index, record(index))
        for index in range(members.SAMPLES):
            kept.drop(index)


def test_a_checksum_knows_its_index_and_label():
    some = record(5)
    sums = {checksum(5, some), checksum(6, some), checksum(5, some._replace(label=0)), checksum(5, record(5, 2999))}
    assert len(sums) == 4


def test_nowhere_keeps_nothing():
    kept = Nowhere("memory")
    assert kept.put(1, record(1)) and not held(kept, 1) and kept.get(1) is None and kept.used_bytes() == 0
    assert not kept.gather(np.zeros(2, np.uint64), np.zeros((2, 5), np.uint8), np.zeros(2, np.int64)).any()


def test_the_quarantine_lists_what_was_damaged(tmp_path):
    listed = Quarantine(tmp_path / "quarantine")
    assert listed.entries() == []
    listed.note("memory", 5, "its checksum is wrong")
    with open(tmp_path / "quarantine", "a") as file:
        file.write('{"level": "me')  # as left by a process that was killed here
    listed.note("disk", 6, "it is short")
    assert [(each["level"], each["index"]) for each in listed.entries()] == [("memory", 5), ("disk", 6)]
