"""The benchmark of the memory level runs whole, on little data; what it says about speed is not looked at."""

import mmap
import os

from benchmarks import datacache_memory
from benchmarks.datacache_memory import BATCH, OURS, PROCESSES, RIVAL, SHARED


def test_it_measures_all_arms_and_leaves_nothing_in_shared_memory(tmp_path):
    said = []
    made = datacache_memory.measure(tmp_path, said.append, samples=PROCESSES * BATCH, rounds=1)
    assert {"memcpy", "slab", "numpy take", "LMDB on tmpfs", OURS, RIVAL} <= set(made.figures["us a sample"])
    assert all(taken > 0 for taken in made.figures["us a sample"].values())
    (shared,) = [verdict for verdict in made.verdicts if verdict.what.startswith("PSS")]
    assert shared.met and 0.99 < made.figures["shared"]
    assert len(said) == 3 and not list(SHARED.glob("datacache-benchmark-*"))


def test_what_a_process_has_of_slabs_is_read_from_its_mappings(tmp_path):
    path = tmp_path / "some.slab"
    path.write_bytes(bytes(40960))
    with open(path, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 40960)
    assert len(bytes(mapped)) == 40960
    assert datacache_memory.share_of(os.getpid()) == 40960
    mapped.close()
    assert datacache_memory.share_of(os.getpid()) == 0
