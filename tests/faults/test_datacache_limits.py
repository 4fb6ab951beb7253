"""datacache: the smallest limit of a process counts, whichever it is, and edited functions leave nothing for ever."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import pytest

import datacache

LIMIT = 120
MIB = 1 << 20
GROUPS = pathlib.Path("/sys/fs/cgroup")

OPEN = """
import os, pathlib, resource, sys
import numpy as np
import datacache

kind, amount, side, local, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
if kind.startswith("RLIMIT"):
    resource.setrlimit(getattr(resource, kind), (amount, amount))
elif kind != "none":
    (pathlib.Path(kind) / "cgroup.procs").write_text(str(os.getpid()))

def decode(payload):
    return np.full(side, payload[0], np.uint8)

source = datacache.Indexed(lambda index: bytes([index]), 32, "numbers", labels=range(32))
try:
    cache = datacache.DataCache(source, decode, local, memory_dir=memory, world=datacache.World())
    print("read", sum(len(labels) for _, labels in cache.batches(8, 0)))
    cache.close()
except datacache.NoSpaceError as error:
    print(error)
"""


@pytest.fixture
def memory():
    """A folder in shared memory."""
    folder = pathlib.Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def opened(kind, amount, side, tmp_path, memory):
    """What a process with this limit says; it must neither be killed nor leave anything."""
    command = [sys.executable, "-c", OPEN, str(kind), str(amount), str(side), str(tmp_path / "local"), str(memory)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert ended.returncode == 0, f"it ended with {ended.returncode}: {ended.stderr}"
    assert [path for path in memory.rglob("*") if path.is_file()] == []
    return ended.stdout


@pytest.fixture
def group():
    """Makes a control group with this memory limit."""
    first = (GROUPS / "memory" / "memory.limit_in_bytes").exists()
    place = (GROUPS / "memory" if first else GROUPS) / "datacache-test"
    limit = place / ("memory.limit_in_bytes" if first else "memory.max")

    def make(size):
        try:
            place.mkdir()
            limit.write_text(str(size))
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        return place

    yield make
    if place.exists():
        place.rmdir()


def test_the_limit_of_a_control_group_counts(group, tmp_path, memory):
    told = opened(group(400 * MIB), 0, 20 * MIB, tmp_path, memory)
    assert "has no room for the memory level" in told and "control group" in told
    assert "Pass a smaller memory_bytes, or raise that limit (docker run --memory" in told


def test_the_limit_of_the_address_space_counts(tmp_path, memory):
    told = opened("RLIMIT_AS", 3 << 30, 100 * MIB, tmp_path, memory)
    assert "has no room for the memory level" in told and "the limit of the address space" in told


def test_within_the_limit_of_the_address_space_all_is_read(tmp_path, memory):
    assert opened("RLIMIT_AS", 3 << 30, MIB, tmp_path, memory) == "read 32\n"


def test_the_limit_of_a_files_size_is_named(tmp_path, memory):
    told = opened("RLIMIT_FSIZE", 100 * MIB, 4 * MIB, tmp_path, memory)
    assert "has no room for the memory level" in told and "the limit of a file's size" in told


def test_edited_functions_leave_nothing_for_ever(tmp_path):
    source = datacache.Indexed(lambda index: bytes([index]), 4, "numbers", labels=range(4))

    def cache_of(version):
        def decode(payload):
            return np.full(8, payload[0] + version, np.uint8)

        places = {"local_dir": tmp_path / "local", "memory_bytes": 0}
        return datacache.DataCache(source, decode, **places, world=datacache.World(), keep_decoded=True)

    def kept():
        return {path.name for path in (tmp_path / "local").glob("*/*/decoded-*")}

    with cache_of(0) as first:
        used = kept()
        for version in range(1, 6):
            cache_of(version).close()
        assert used < kept() and len(kept()) == 3
        assert first.fetch(1)[0][0] == 1
    with cache_of(5) as last:
        assert len(kept()) == 2
        last.take(range(4))
    with cache_of(5) as last:
        last.take(range(4))
        assert last.counters.numbers()["samples.decoded"] == 4


def test_control_without_a_limit_all_is_read(tmp_path, memory):
    assert opened("none", 0, MIB, tmp_path, memory) == "read 32\n"
