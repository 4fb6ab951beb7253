"""The smallest limit of memory, from files as the kernel writes them."""

import os
import resource
from pathlib import Path

import pytest

from datacache import limits, memory
from datacache.errors import NoSpaceError

MIB = 1 << 20
ASIDE = 64 * MIB


def write(folder, **contents):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def process(tmp_path, kind, group, mounted="/", controllers="memory"):
    """The description of a process in a group, of which the groups below `mounted` are shown; and where."""
    place = tmp_path / "groups with blanks"
    shown = str(place).replace(" ", "\\040")
    line = f"4:{controllers}:{group}" if kind == "cgroup" else f"0::{group}"
    write(
        tmp_path / "self",
        cgroup=f"1:cpu:/\n{line}",
        mountinfo=f"25 24 0:23 / /dev/shm rw shared:2 - tmpfs tmpfs rw\n"
        f"35 31 0:32 {mounted} {shown} rw,relatime - {kind} {kind} rw,memory",
    )
    return tmp_path / "self", place


def second(place, limit, used, cached=0):
    stat = f"anon 5\nactive_file {cached // 2}\ninactive_file {cached - cached // 2}"
    write(place, memory__max=limit, memory__current=used, memory__stat=stat)


def first(place, limit, used, cached=0):
    stat = f"active_file 7\ntotal_active_file {cached}\ntotal_inactive_file 0"
    write(place, memory__limit_in_bytes=limit, memory__usage_in_bytes=used, memory__stat=stat)


KINDS = pytest.mark.parametrize("kind, fill", [("cgroup", first), ("cgroup2", second)])


@KINDS
def test_the_groups_above_count_and_cached_files_are_free(kind, fill, tmp_path):
    described, place = process(tmp_path, kind, "/jobs/one")
    fill(place / "jobs", 800 * MIB, 700 * MIB, 500 * MIB)
    fill(place / "jobs" / "one", 1000 * MIB, 300 * MIB, 0)
    rooms = list(limits.of_groups(described))
    assert [room.bytes for room in rooms] == [700 * MIB - ASIDE, 600 * MIB - ASIDE]
    assert str(place / "jobs") in min(rooms).of


@KINDS
def test_a_container_that_is_shown_its_own_group_alone(kind, fill, tmp_path):
    for mounted in ("/docker/abc", "/"):
        described, place = process(tmp_path, kind, "/docker/abc" if mounted != "/" else "/../abc", mounted)
        fill(place, 900 * MIB, 100 * MIB)
        assert [room.bytes for room in limits.of_groups(described)] == [800 * MIB - ASIDE]


@KINDS
def test_without_a_limit_there_is_no_room_to_compare(kind, fill, tmp_path):
    described, place = process(tmp_path, kind, "/one")
    fill(place / "one", "max" if kind == "cgroup2" else 2**63 - 4096, 100 * MIB)
    assert list(limits.of_groups(described)) == []
    assert list(limits.of_groups(tmp_path / "nowhere")) == []


def test_more_than_a_limit_leaves_nothing(tmp_path):
    described, place = process(tmp_path, "cgroup2", "/one")
    second(place / "one", 100 * MIB, 90 * MIB)
    assert [room.bytes for room in limits.of_groups(described)] == [0]


def test_memory_counts_for_files_in_memory_only(tmp_path):
    write(tmp_path / "proc", meminfo=f"MemTotal: 9 kB\nMemAvailable: {300 * 1024} kB")
    process(tmp_path / "proc", "cgroup2", "/one")
    assert min(limits.for_memory(Path("/dev/shm"), proc=tmp_path / "proc")).bytes == 300 * MIB - ASIDE
    assert "device of /" in min(limits.for_memory(Path("/"), proc=tmp_path / "proc")).of


def test_what_a_file_has_already_is_room_of_its_own():
    without, held = limits.for_memory(Path("/dev/shm")), limits.for_memory(Path("/dev/shm"), 1 << 50)
    assert min(held).bytes - min(without).bytes > 1 << 49


def test_the_limits_of_this_process_count():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, before[1]))
    try:
        (room,) = limits.of_a_file()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert room.bytes == 1 << 40 and "ulimit -f" in room.remedy
    assert os.sysconf("SC_PAGE_SIZE") and limits.of_addresses() == []


def test_each_room_that_is_too_small_is_told(tmp_path):
    rooms = [limits.Room(9, "one", "raise one"), limits.Room(5, "two", "raise two"), limits.Room(99, "three", "no")]
    with pytest.raises(NoSpaceError, match="10 bytes .*, 9 are free within one, 5 are free within two. Pass .* two$"):
        memory.require_room(tmp_path, 10, rooms)
    memory.require_room(tmp_path, 5, rooms)
