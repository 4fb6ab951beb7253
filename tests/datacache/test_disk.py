"""Properties of the disk level alone: it outlives runs, keeps to its size, and is recreated if it cannot be trusted."""

import os

import numpy as np
import pytest

from datacache import disk
from datacache.disk import DiskLevel
from tests.datacache import damage, devices
from tests.datacache.members import SAMPLES
from tests.datacache.test_levels import record

SIZE = 16 << 20


@pytest.fixture
def path(tmp_path):
    """A level with some records, closed."""
    kept = DiskLevel(tmp_path / "disk", SIZE)
    for index in range(SAMPLES):
        kept.put(index, record(index))
    kept.close()
    return tmp_path / "disk"


def contents(path):
    kept = DiskLevel(path, SIZE)
    found = [kept.get(index) for index in range(SAMPLES)]
    kept.close()
    return found


def test_it_outlives_the_run(path):
    assert contents(path) == [record(index) for index in range(SAMPLES)]
    assert not (path / "unsynced").exists()
    kept = DiskLevel(path, SIZE)
    assert kept.count() == SAMPLES and SAMPLES * 3000 < kept.used_bytes() < SAMPLES * 3000 * 2
    kept.close()


def test_the_forecast_is_enough_and_not_far_off(tmp_path):
    lengths = np.random.default_rng(0).integers(0, 20_000, 500)
    size = disk.forecast(lengths)
    kept = DiskLevel(tmp_path / "disk", size)
    order = np.random.default_rng(1).permutation(500)
    assert all(kept.put(int(index), record(int(index), int(lengths[index]))) for index in order)
    assert lengths.sum() < kept.used_bytes() < size < 1.5 * lengths.sum() + (32 << 20)
    kept.close()


def unsynced_in_another_boot(path):
    (path / "unsynced").write_text("another boot\n")


def truncated(path):
    os.truncate(path / "data.mdb", (path / "data.mdb").stat().st_size // 2)


def garbage(path):
    (path / "data.mdb").write_bytes(os.urandom(100_000))


def emptied(path):
    (path / "data.mdb").write_bytes(b"")


@pytest.mark.parametrize("break_it", [unsynced_in_another_boot, truncated, garbage, emptied])
def test_what_cannot_be_trusted_is_made_anew(break_it, path):
    break_it(path)
    assert contents(path) == [None] * SAMPLES
    kept = DiskLevel(path, SIZE)
    assert kept.put(1, record(1)) and kept.get(1) == record(1)
    kept.close()


def test_a_process_that_was_killed_before_it_synced_loses_nothing(path):
    child = os.fork()
    if child == 0:
        DiskLevel(path, SIZE).put(SAMPLES, record(SAMPLES))
        os._exit(9)
    os.waitpid(child, 0)
    assert (path / "unsynced").exists()
    kept = DiskLevel(path, SIZE)
    assert kept.get(SAMPLES) == record(SAMPLES) and kept.get(0) == record(0)
    kept.sync()
    assert not (path / "unsynced").exists()
    kept.close()


def test_a_lasting_size_is_that_of_who_came_first(tmp_path):
    one = DiskLevel(tmp_path / "disk", 1 << 20)
    two = DiskLevel(tmp_path / "disk", 64 << 20)
    assert two.put(2, record(2)) and one.get(2) == record(2) and not two.put(1, record(1, 2 << 20))
    assert not two.put(3, record(3)) and one.put(3, record(3))  # a level that was once full does not try again
    one.close()
    two.close()
    three = DiskLevel(tmp_path / "disk", 64 << 20)
    assert three.put(1, record(1, 2 << 20)) and three.get(2) == record(2)
    three.close()


SMALL = """
import os, pathlib, sys
from datacache.disk import DiskLevel
from datacache.errors import NoSpaceError
from datacache.slab import Slab
from tests.datacache.test_levels import record
path = pathlib.Path(sys.argv[1])
kept = DiskLevel(path / "disk", 64 << 20)
fits = [kept.put(index, record(index, 100_000)) for index in range(40)]
assert fits[0] and not fits[-1], fits
for index, fitted in enumerate(fits):
    assert kept.get(index) == (record(index, 100_000) if fitted else None)
try:
    Slab(path / "shm", "key", range(9), 1 << 20)
except NoSpaceError as error:
    print(error)
"""


def test_a_device_that_is_full_keeps_what_it_has(tmp_path):
    said = devices.run(SMALL, "2m", tmp_path)
    assert "has no room for the memory level: 1,048,576 bytes were asked for" in said


def test_processes_that_open_and_close_at_the_same_time_are_not_in_each_others_way(tmp_path):
    """LMDB's last user destroys its mutexes while the next one may be about to use them."""
    DiskLevel(tmp_path / "disk", 1 << 20).close()
    children = []
    for _ in range(6):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                for _ in range(500):
                    level = DiskLevel(tmp_path / "disk", 1 << 20)
                    assert level.get(1) is None
                    level.close()
                os._exit(0)
            finally:
                os._exit(1)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 6


# ---- damage on disk ----


def zero_a_large_value(path):
    """Zeroes the first page of a record that has its own pages."""
    content = bytearray((path / "data.mdb").read_bytes())
    page = int(damage.pages(content, 4)[0]) * damage.PAGE
    (path / "data.mdb").write_bytes(bytes(content[:page] + bytes(damage.PAGE) + content[page + damage.PAGE :]))


def test_a_damaged_value_does_not_take_others_pages_along(path, caplog):
    """LMDB would free as many pages as the damaged value claims to have."""
    zero_a_large_value(path)
    kept = DiskLevel(path, SIZE)
    (damaged,) = [index for index, found in enumerate(kept.collect(np.arange(SAMPLES))) if found is None]
    assert kept.put(damaged, record(damaged)) and kept.collect(np.array([damaged])) == [None]  # it is not overwritten
    kept.drop(damaged)
    assert kept.get(damaged) is None and kept.put(damaged, record(damaged))
    for index in range(SAMPLES, 2 * SAMPLES):
        kept.put(index, record(index))
    kept.close()
    assert contents(path) == [record(index) for index in range(SAMPLES)] and not caplog.records


def test_a_damaged_tree_is_told(path, caplog):
    content = bytearray((path / "data.mdb").read_bytes())
    content[int(damage.pages(content, 2)[-1]) * damage.PAGE] ^= 1
    (path / "data.mdb").write_bytes(bytes(content))
    assert contents(path) == [None] * SAMPLES
    assert f"{path} is rebuilt from the source: it is damaged (a page of a tree is another one)" in caplog.text


@pytest.mark.parametrize("name", ["unsynced", "size.json", "lock.mdb", "use"])
def test_a_damaged_file_beside_it_is_no_matter(name, path):
    (path / name).write_bytes(bytes(range(128, 256)))
    assert contents(path) in ([None] * SAMPLES, [record(index) for index in range(SAMPLES)])
