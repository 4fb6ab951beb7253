"""Properties of the memory level alone: reserved memory, owners that may die, and a table that is not trusted."""

import functools
import os
import random

import numpy as np
import pytest

from datacache.errors import NoSpaceError
from datacache.levels import DamagedRecordError
from datacache.memory import DIRECTORY
from datacache.native import library
from datacache.slab import Slab, needed
from tests.datacache import members
from tests.datacache.killing import orphan
from tests.datacache.members import SAMPLES
from tests.datacache.test_levels import held, record

SIZE = needed(SAMPLES, 3000)


def filled(directory, key="key"):
    kept = Slab(directory, key, range(SAMPLES), SIZE)
    for index in range(SAMPLES):
        kept.put(index, record(index))
    return kept


def test_it_holds_all_samples_of_the_size_that_it_was_made_for(tmp_path):
    kept = filled(tmp_path)
    assert all(kept.get(index) == record(index) for index in range(SAMPLES))
    assert SAMPLES * 3000 < kept.used_bytes() < SIZE < SAMPLES * 3100 + 16 * 3100 + 8192
    kept.close()


def test_only_its_own_samples_have_a_place(tmp_path):
    kept = Slab(tmp_path, "key", range(10, 20), SIZE)
    assert [kept.put(index, record(index)) for index in (9, 10, 19, 20, 2**63)] == [False, True, True, False, False]
    assert not held(kept, 9) and kept.get(20) is None and kept.get(19) == record(19)
    kept.close()


def test_a_device_that_is_too_small_is_an_error_in_words():
    device = os.statvfs(DIRECTORY)
    directory = DIRECTORY / f"datacache-test-{os.getpid()}"
    try:
        with pytest.raises(NoSpaceError, match="has no room .* Pass a smaller memory_bytes, or enlarge .*--shm-size"):
            Slab(directory, "key", range(10), device.f_blocks * device.f_frsize + 4096)
        assert list(directory.iterdir()) == []
    finally:
        directory.rmdir()


def test_too_small_for_its_table_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="Expected at least 8192 bytes of memory for 40 samples, got 8191"):
        Slab(tmp_path, "key", range(40), 8191)


@pytest.mark.parametrize("lacking", [0, 1, 63, 64])
def test_the_last_record_fits_to_the_byte(lacking, tmp_path):
    native = library()
    size = native.datacache_slab_overhead(2) + native.datacache_slab_footprint(3000) + 3000 - lacking
    kept = Slab(tmp_path, "key", range(2), size)
    assert kept.put(0, record(0)) and kept.put(1, record(1)) == (lacking == 0)
    assert kept.get(1) == (None if lacking else record(1))
    kept.close()


def test_the_last_one_to_close_it_removes_it(tmp_path):
    one, two = filled(tmp_path), Slab(tmp_path, "key", range(SAMPLES), SIZE)
    one.close()
    assert len(list(tmp_path.iterdir())) == 1
    two.close()
    assert list(tmp_path.iterdir()) == []


def test_after_a_kill_it_is_taken_over_by_who_wants_the_same(tmp_path):
    orphan(lambda: filled(tmp_path, "key"))
    kept = Slab(tmp_path, "key", range(SAMPLES), SIZE)
    assert all(kept.get(index) == record(index) for index in range(SAMPLES))
    kept.close()


def test_after_a_kill_it_is_removed_by_who_wants_another(tmp_path):
    live = filled(tmp_path, "live")
    orphan(lambda: filled(tmp_path, "dead"))
    assert len(list(tmp_path.iterdir())) == 2
    other = Slab(tmp_path, "other", range(SAMPLES), SIZE)
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == ["live", "other"]
    assert live.get(3) == record(3)
    live.close()
    other.close()


@pytest.mark.parametrize("content", [b"", b"datacache", bytes(SIZE), b"x" * SIZE])
def test_what_a_killed_maker_left_is_made_anew(content, tmp_path):
    kept = filled(tmp_path)
    (path,) = tmp_path.iterdir()
    kept.close()
    path.write_bytes(content)
    kept = Slab(tmp_path, "key", range(SAMPLES), SIZE)
    assert not any(held(kept, index) for index in range(SAMPLES))
    assert kept.put(1, record(1)) and kept.get(1) == record(1)
    kept.close()


def test_a_flipped_bit_anywhere_never_gives_another_record(tmp_path):
    """Flips are also in header and table; a lost record can be put again without damage to others."""
    numbers = random.Random(1)
    kept = filled(tmp_path)
    (path,) = tmp_path.iterdir()
    table = library().datacache_slab_overhead(SAMPLES)
    assert table == 8192
    places = [numbers.randrange(4096, 4096 + 40 * SAMPLES) for _ in range(500)] + [2048 + byte for byte in range(8)]
    for position in places:
        index = max(0, (position - 4096) // 40)
        with members.flipped(path, position, 1 << numbers.randrange(8)):
            for other in (index, numbers.randrange(SAMPLES)):
                try:
                    assert kept.get(other) in (None, record(other))
                except DamagedRecordError:
                    pass
    assert all(kept.get(index) == record(index) for index in range(SAMPLES))
    with members.flipped(path, 4096 + 5 * 40 + 8, 64):  # it now refers to the place of a neighbouring record
        kept.drop(5)
        assert kept.put(5, record(5)) and kept.get(5) == record(5)
    kept.close()


def test_it_gathers_only_what_has_the_right_form(tmp_path):
    kept = filled(tmp_path)
    rows, labels, indices = np.zeros((2, 3000), np.uint8), np.zeros(2, np.int64), np.zeros(2, np.uint64)
    for wrong in [(indices.astype(np.int64), rows, labels), (indices, rows.view(np.int8), labels)]:
        with pytest.raises(TypeError, match="Expected uint64, uint8 and int64"):
            kept.gather(*wrong)
    for wrong in [(indices, rows[:1], labels), (indices, rows, labels[:1]), (indices, rows.reshape(-1), labels)]:
        with pytest.raises(ValueError, match="Expected 2 rows and labels"):
            kept.gather(*wrong)
    with pytest.raises(ValueError, match="contiguous array"):
        kept.gather(indices, np.zeros((2, 6000), np.uint8)[:, ::2], labels)
    kept.close()


def test_a_record_that_is_put_anew_while_it_is_read_is_not_damaged(tmp_path, monkeypatch):
    kept, other = filled(tmp_path), filled(tmp_path)
    steps = [lambda: other.drop(1), lambda: None]
    lengths = Slab._lengths

    def meanwhile(self, indices):
        """Removes the record when its length is known, and puts it back at the next query."""
        if len(steps) == 1:
            other.put(1, record(1))
        found = lengths(self, indices)
        steps.pop(0)()
        return found

    monkeypatch.setattr(kept, "_lengths", functools.partial(meanwhile, kept))
    assert kept.get(1) is None
    monkeypatch.undo()
    assert kept.put(1, record(1)) and kept.get(1) == record(1)
    kept.close()
    other.close()
