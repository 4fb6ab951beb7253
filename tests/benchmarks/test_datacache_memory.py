"""The benchmark of the memory level runs completely on little data; the speeds it reports are not checked."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.datacache import memory as datacache_memory
from benchmarks.datacache.memory import BATCH, OURS, PROCESSES, RIVAL, SHARED

pytestmark = pytest.mark.thorough


def test_it_measures_all_arms_and_leaves_nothing_in_shared_memory(tmp_path, monkeypatch):
    said = []
    with tempfile.TemporaryDirectory(dir=SHARED) as own:  # others may use /dev/shm at the same time
        monkeypatch.setattr(datacache_memory, "SHARED", Path(own))
        made = datacache_memory.measure(tmp_path, said.append, samples=PROCESSES * BATCH, rounds=1)
        assert not list(Path(own).iterdir())
    assert {"memcpy", "slab", "numpy take", "LMDB on tmpfs", OURS, RIVAL} <= set(made.figures["us a sample"])
    assert all(taken > 0 for taken in made.figures["us a sample"].values())
    (shared,) = [verdict for verdict in made.verdicts if verdict.what.startswith("PSS")]
    assert shared.met and 0.99 < made.figures["shared"]
    assert len(said) == 3


MAPPER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 40960)
assert len(bytes(mapped)) == 40960
print("mapped", flush=True)
sys.stdin.readline()
mapped.close()
print("closed", flush=True)
sys.stdin.readline()
"""


def test_what_a_process_has_of_slabs_is_read_from_its_mappings(tmp_path):
    """In a subprocess, as this process may still have slabs of earlier tests, until they are collected."""
    path = tmp_path / "some.slab"
    path.write_bytes(bytes(40960))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", MAPPER, str(path)], **pipes) as mapper:
        assert mapper.stdout.readline() == "mapped\n"
        assert datacache_memory.share_of(mapper.pid) == 40960
        mapper.stdin.write("\n")
        mapper.stdin.flush()
        assert mapper.stdout.readline() == "closed\n"
        assert datacache_memory.share_of(mapper.pid) == 0
        mapper.stdin.close()
