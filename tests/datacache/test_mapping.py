import gc
import mmap
import os
import platform
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from datacache import mapping

HUGE = 2 << 20
SIZES = [4096, HUGE - 4096, HUGE, HUGE + 4096, 5 * HUGE + 3 * 4096]


@pytest.fixture
def file():
    """An empty file on a tmpfs."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    descriptor = os.open(folder / "file", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)
    shutil.rmtree(folder)


def huge_bytes(memory):
    """Bytes in huge pages, as counted by the kernel, of the mapping that begins at the array."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.partition(" ")[0]:
            inside = line.startswith(f"{memory.ctypes.data:x}-")
        elif inside and line.startswith("ShmemPmdMapped:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("the mapping is not there")


def times_mapped(file):
    """How often this process maps this file; mappings of others with its name may await garbage collection."""
    return Path("/proc/self/maps").read_text().count(os.readlink(f"/proc/self/fd/{file}"))


@pytest.mark.parametrize("size", SIZES)
def test_all_pages_are_reserved_and_zero(file, size):
    mapping.reserve(file, size)
    assert os.fstat(file).st_size == size and os.fstat(file).st_blocks * 512 >= size
    assert not mapping.map_shared(file, size).any()


@pytest.mark.parametrize("size", SIZES)
def test_what_is_mapped_is_the_file_at_a_place_for_huge_pages(file, size):
    mapping.reserve(file, size)
    memory = mapping.map_shared(file, size)
    assert memory.shape == (size,) and memory.dtype == np.uint8 and memory.ctypes.data % HUGE == 0
    memory[:] = np.arange(size) % 251
    np.testing.assert_array_equal(np.frombuffer(mmap.mmap(file, size), np.uint8), memory)
    np.testing.assert_array_equal(mapping.map_shared(file, size), memory)


def test_it_stays_mapped_for_as_long_as_a_part_is_referred_to(file):
    mapping.reserve(file, HUGE)
    part = mapping.map_shared(file, HUGE)[5:9]
    gc.collect()
    part[:] = 7
    assert os.pread(file, 4, 5) == b"\x07" * 4 and times_mapped(file) == 1
    del part
    gc.collect()
    assert times_mapped(file) == 0


def test_pages_are_huge_where_the_kernel_can(file):
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    if release < (6, 1) or not Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled").exists():
        pytest.skip("this kernel gives no huge pages to a tmpfs on request")
    mapping.reserve(file, 4 * HUGE)
    memory = mapping.map_shared(file, 4 * HUGE)
    memory[::4096] = 1
    assert huge_bytes(memory) == memory.size


def test_huge_pages_that_are_refused_do_not_matter(file, monkeypatch):
    monkeypatch.setattr(mapping, "_COLLAPSE", 12345)  # like an older kernel, which does not know it
    mapping.reserve(file, 2 * HUGE)
    memory = mapping.map_shared(file, 2 * HUGE)
    memory[::4096] = 1
    assert huge_bytes(memory) == 0 and memory.sum() == 2 * HUGE // 4096


def test_what_cannot_be_mapped_is_an_error(file):
    with pytest.raises(OSError, match="cannot be mapped"):
        mapping.map_shared(-1, HUGE)
