"""A child that is forked while threads fetch: what it can do, and what it must leave alone."""

import os
import signal
import threading
import traceback

import numpy as np
import pytest

import datacache
from datacache import counters
from datacache.disk import DiskLevel
from datacache.levels import Record

COUNT = 60
LIMIT = 120  # seconds; a child needs one, so after this it hangs


@pytest.fixture
def cache(tmp_path):
    source = datacache.Indexed(lambda index: np.int64(index).tobytes(), COUNT, "numbers", labels=range(COUNT))
    options = {"world": datacache.World(), "memory_dir": tmp_path / "shm"}
    with datacache.DataCache(source, lambda each: np.frombuffer(each, np.int64), tmp_path / "local", **options) as made:
        yield made


def in_child(work):
    """Runs work in a forked child and asserts that it returns."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    limit = threading.Timer(LIMIT, os.kill, (child, signal.SIGABRT))  # pytest's fault handler then prints where it is
    limit.start()
    status = os.waitpid(child, 0)[1]
    limit.cancel()
    assert os.waitstatus_to_exitcode(status) == 0


def test_single_samples_are_fetched(cache):
    next(cache.batches(4, 0))

    def work():
        for index in range(COUNT):
            assert cache.fetch(index)[1] == index
        cache.close()

    in_child(work)
    assert sum(len(labels) for _, labels in cache.batches(4, 0)) == COUNT


def test_batches_are_refused(cache):
    begun = cache.batches(4, 0)
    next(begun)

    def work():
        for batches in (lambda: begun, lambda: cache.batches(4, 1)):
            with pytest.raises(RuntimeError, match=r"was forked from it.*Open a DataCache in the child itself"):
                next(batches())

    in_child(work)
    assert sum(len(labels) for _, labels in begun) == COUNT - 4


def test_nothing_is_counted_twice(cache, tmp_path):
    assert sum(len(labels) for _, labels in cache.batches(4, 0)) == COUNT
    in_child(cache.close)
    in_child(lambda: cache.counters.save(tmp_path / "stats"))
    assert counters.total(tmp_path / "stats") == {}


def test_children_that_are_forked_amid_reads_and_writes_harm_neither_side(tmp_path):
    level, ended = DiskLevel(tmp_path / "level", 1 << 20), threading.Event()
    faults = []

    def work(first):
        try:
            index = first
            while not ended.is_set():
                assert level.put(index % COUNT, Record(b"%d" % (index % COUNT), index % COUNT))
                assert level.get(first) == Record(b"%d" % first, first)
                index += 1
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(5):

            def read_and_write(index=COUNT + number):
                assert level.put(index, Record(b"child", index)) and level.get(index) == Record(b"child", index)
                in_child(lambda: level.drop(index))

            in_child(read_and_write)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not faults
    assert level.collect(np.arange(COUNT, COUNT + 5)) == [None] * 5
    level.close()
