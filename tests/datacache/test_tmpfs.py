"""The memory level for varying shapes: ownership, size, and what it does if there is no room."""

import os

import numpy as np
import pytest

from datacache import files, memory
from datacache.errors import NoSpaceError
from datacache.memory import DIRECTORY
from datacache.slab import Slab, needed
from datacache.tmpfs import TmpfsLevel
from tests.datacache import devices, members
from tests.datacache.killing import orphan
from tests.datacache.members import SAMPLES
from tests.datacache.test_levels import held, record

SIZE = 4 << 20


def filled(directory, key="key", size=SIZE):
    kept = TmpfsLevel(directory, key, size)
    for index in range(SAMPLES):
        kept.put(index, record(index, 100 * index))
    return kept


def assert_filled(kept):
    assert all(kept.get(index) == record(index, 100 * index) for index in range(SAMPLES))


def test_the_last_one_to_close_it_removes_it(tmp_path):
    one, two = filled(tmp_path), TmpfsLevel(tmp_path, "key", SIZE)
    one.close()
    assert len(list(tmp_path.iterdir())) == 1
    assert_filled(two)
    two.close()
    assert list(tmp_path.iterdir()) == []


def test_one_that_another_process_has_open_stays(tmp_path):
    kept = filled(tmp_path)
    child = os.fork()
    if child == 0:
        try:
            TmpfsLevel(tmp_path, "key", SIZE).close()
            TmpfsLevel(tmp_path, "other", SIZE).close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert_filled(kept)
    kept.close()
    assert list(tmp_path.iterdir()) == []


def test_after_a_kill_it_is_taken_over_by_who_wants_the_same(tmp_path):
    orphan(lambda: filled(tmp_path))
    kept = TmpfsLevel(tmp_path, "key", SIZE)
    assert_filled(kept)
    kept.close()


@pytest.mark.parametrize(
    "other",
    [
        lambda path: TmpfsLevel(path, "other", SIZE),
        lambda path: TmpfsLevel(path, "key", SIZE + 4096),
        lambda path: Slab(path, "key", range(2), needed(2, 3000)),
    ],
    ids=["another key", "another size", "a slab"],
)
def test_after_a_kill_it_is_removed_by_who_wants_another(other, tmp_path):
    live = filled(tmp_path, "live")
    orphan(lambda: filled(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    kept = other(tmp_path)
    assert not held(kept, 1) and len(list(tmp_path.iterdir())) == 2
    assert_filled(live)
    live.close()
    kept.close()


def test_a_slab_that_a_killed_process_left_is_removed(tmp_path):
    orphan(lambda: Slab(tmp_path, "key", range(2), needed(2, 3000)))
    kept = filled(tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [memory.LMDB]
    kept.close()


@pytest.mark.parametrize("left", [{}, {"data.mdb": b""}, {"data.mdb": b"x" * 9000}, {"use": b""}])
def test_what_a_killed_maker_left_is_made_anew(left, tmp_path):
    (tmp_path / f"key-{SIZE}.lmdb").mkdir()
    for name, content in left.items():
        (tmp_path / f"key-{SIZE}.lmdb" / name).write_bytes(content)
    kept = TmpfsLevel(tmp_path, "key", SIZE)
    assert not held(kept, 1) and kept.put(1, record(1)) and kept.get(1) == record(1)
    kept.close()


def test_it_takes_no_more_than_it_may(tmp_path):
    kept = TmpfsLevel(tmp_path, "key", SIZE)
    fits = [kept.put(index, record(index, 30_000)) for index in range(200)]
    taken = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file())
    assert 0.75 * SIZE < taken <= SIZE and sum(fits) > 100 and not fits[-1]
    kept.close()


def test_what_is_too_long_leaves_room_for_what_is_shorter(tmp_path):
    kept = TmpfsLevel(tmp_path, "key", SIZE)
    assert not kept.put(1, record(1, SIZE))
    assert kept.put(2, record(2, 3000)) and kept.get(2) == record(2)
    kept.close()


def test_by_default_it_may_take_half_of_what_is_free(tmp_path):
    device = os.statvfs(tmp_path)
    kept = TmpfsLevel(tmp_path, "key")
    (size,) = (files.read_json(path) for path in tmp_path.rglob("size.json"))
    assert 0.4 < size / (device.f_bavail * device.f_frsize) < 0.6
    second = TmpfsLevel(tmp_path, "key")  # an existing level is shared, however much is free by then
    second.put(1, record(1))
    assert kept.get(1) == record(1)
    kept.close()
    second.close()


def test_a_device_that_is_too_small_is_an_error_in_words():
    device, directory = os.statvfs(DIRECTORY), DIRECTORY / f"datacache-test-{os.getpid()}"
    try:
        with pytest.raises(NoSpaceError, match="has no room .* Pass a smaller memory_bytes, or enlarge .*--shm-size"):
            TmpfsLevel(directory, "key", device.f_blocks * device.f_frsize + 4096)
        assert list(directory.iterdir()) == []
    finally:
        directory.rmdir()


def test_too_small_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="Expected at least 1179648 bytes of memory for samples of varying shape"):
        TmpfsLevel(tmp_path, "key", 1 << 20)


def test_batches_leave_out_what_is_damaged(tmp_path):
    kept = filled(tmp_path)
    (path,) = tmp_path.glob("*.lmdb/data.mdb")
    position = path.read_bytes().find(record(30, 3000).payload)
    with members.flipped(path, position + 7, 1):
        found = kept.collect(np.array([31, 30, 0, 10**6], np.uint64))
    assert found == [record(31, 3100), None, record(0, 0), None]
    kept.close()


FULL = """
import os, pathlib, sys
from datacache.tmpfs import TmpfsLevel
from tests.datacache.devices import fill
from tests.datacache.test_levels import record

path = pathlib.Path(sys.argv[1])

kept = TmpfsLevel(path, "key", 6 << 20)
for index in range(10):
    assert kept.put(index, record(index, 100_000))
fill(path / "filler")
assert not kept.put(10, record(10, 100_000))
assert all(kept.get(index) == record(index, 100_000) for index in range(10))

readers = [kept._environment().begin() for _ in range(200)]  # each with a place of its own in LMDB's table
for reader in readers:
    reader.abort()
child = os.fork()
if child == 0:
    try:
        other = TmpfsLevel(path, "key", 6 << 20)
        os._exit(0 if other.get(3) == record(3, 100_000) else 2)
    finally:
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
(path / "filler").unlink()
assert kept.put(10, record(10, 99_999)) and kept.get(10) == record(10, 99_999)
kept.close()
print(os.listdir(path))
"""


def test_a_device_that_others_fill_keeps_what_it_has(tmp_path):
    """A reader that comes later finds its slot in LMDB's table reserved, and is not killed by a missing page."""
    assert devices.run(FULL, "8m", tmp_path) == "[]\n"
