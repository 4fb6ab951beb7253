"""Small devices that are really mounted: a /dev/shm of 64 MB, as in containers, and a full disk."""

import pytest

from tests.datacache.devices import run

pytestmark = pytest.mark.thorough

COMMON = """
import pathlib, sys
import numpy as np
import datacache
from datacache.errors import NoSpaceError
from datacache.order import permutation
from tests.datacache.devices import fill

path, count, side = pathlib.Path(sys.argv[1]), 96, 1024

def decode(payload):
    return np.full(side * side, payload[0], np.uint8)

def opened(local, **levels):
    source = datacache.Indexed(lambda index: bytes([index]) * 50_000, count, "numbers", labels=np.arange(count))
    return datacache.DataCache(source, decode, local, world=datacache.World(), **levels)

def check(cache):
    for epoch in range(2):
        batches = list(cache.batches(8, epoch))
        labels = np.concatenate([labels for _, labels in batches])
        assert np.array_equal(labels, permutation(count, 0, epoch))
        for samples, labels in batches:
            assert np.array_equal(samples, np.repeat(labels[:, None], side * side, 1))
    return cache.counters.numbers()
"""

MEMORY = (
    COMMON
    + """
local = pathlib.Path(sys.argv[2])
try:
    opened(local, memory_dir=path)
except NoSpaceError as error:
    print(error)
with opened(local, memory_dir=path, memory_bytes=50 << 20) as cache:
    numbers = check(cache)
assert numbers["not kept.memory"] > 0 and numbers["samples.memory"] >= 40, numbers
assert numbers["samples.source"] == count - 1 and not list(path.rglob("*.slab"))
"""
)

DISK = (
    COMMON
    + """
memory = pathlib.Path(sys.argv[2])
for levels in ({"memory_bytes": 0}, {"memory_dir": memory}):
    with opened(path / "local", **levels) as cache:
        numbers = check(cache)
    assert numbers["not kept.disk"] > 0, numbers
    print(sorted(each.name for each in path.rglob("*.part")))

with opened(path / "local", memory_dir=memory) as cache:
    fill(path / "filler")
    check(cache)
with opened(path / "local", memory_dir=memory) as cache:
    check(cache)
try:
    opened(path / "other", memory_dir=memory)
except NoSpaceError as error:
    print(error)
(path / "filler").unlink()
with opened(path / "local", memory_dir=memory) as cache:
    check(cache)
"""
)


def test_shared_memory_of_64_megabytes(tmp_path):
    """Asking for too much is an error at the start; with less memory, the other samples stay on disk."""
    said = run(MEMORY, "64m", tmp_path / "shm", tmp_path / "local")
    assert "has no room for the memory level: 117," in said and "are free" in said and "--shm-size" in said


def test_a_disk_that_is_full(tmp_path):
    """Samples that do not fit are read from the source again. A run whose disk fills up continues; so does the next."""
    said = run(DISK, "3m", tmp_path / "disk", tmp_path / "shm")
    assert said.startswith("[]\n[]\n[Errno 28]") and "make room on that disk" in said
