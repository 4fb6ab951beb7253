"""From the memory level to NumPy and to tf.data, against the alternatives: `python -m benchmarks.datacache.memory`.

Samples of 96x96x3 bytes are read in batches of 256, in random order. An arm is an epoch; all arms run in turn, and
after each the labels of every batch and the bytes of one batch are checked. The tf.data arms read four epochs at once,
as starting an iterator takes as long as several batches, and a real epoch has thousands. The memory level has only one
way to read, which checks every record; it is compared with a plain memcpy of the same rows from the same memory.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import lmdb
import numpy as np

import datacache
from benchmarks.reporting import report, timing
from benchmarks.reporting.report import Section, Verdict
from benchmarks.reporting.timing import Arm, Timing

SHAPE, BATCH, SAMPLES, ROUNDS, PROCESSES = (96, 96, 3), 256, 8192, 15, 8
SIZE = int(np.prod(SHAPE))
AT_ONCE = 4  # epochs of tf.data's arms
OURS, PYTHON, RIVAL = "tf.data: ours", "tf.data: numpy_function", "tf.data: cache().shuffle().batch()"
SHARED = pathlib.Path("/dev/shm")
KERNEL = """
#include <cstdint>
#include <cstring>
extern "C" void copy_rows(const uint8_t* const* places, uint64_t count, uint8_t* rows, uint64_t bytes) {
  for (uint64_t i = 0; i < count; ++i) std::memcpy(rows + i * bytes, places[i], bytes);
}
"""


def decode(payload: bytes) -> np.ndarray:
    """Keeps samples as they are."""
    return np.frombuffer(payload, np.uint8).reshape(SHAPE)


def open_cache(folder: pathlib.Path, memory: pathlib.Path, world: datacache.World) -> datacache.DataCache:
    """A cache of the samples in a folder, with nothing on disk."""
    data = np.load(folder / "samples.npy", mmap_mode="r")
    source = datacache.Indexed(
        lambda index: data[index].tobytes(),
        len(data),
        f"{folder} {len(data)}",
        labels=np.arange(len(data)),
        version="1",  # the function holds all data
    )
    return datacache.DataCache(
        source, decode, folder / "local", world=world, disk_bytes=0, memory_dir=memory, workers=2
    )


# ---- the arms ----


class Epoch:
    """The state that an arm's last epoch has left."""

    def __init__(self, data: np.ndarray):
        self.data, self.flat = data, data.reshape(len(data), SIZE)
        self.order = np.random.default_rng(1).permutation(len(data)).astype(np.uint64)
        memory = np.empty(BATCH * SIZE + 64, np.uint8)
        self.rows = memory[-memory.ctypes.data % 64 :][: BATCH * SIZE].reshape(BATCH, SIZE)
        self.labels, self.seen, self.last = np.zeros(BATCH, np.int64), [], None

    def batches(self) -> Iterator[np.ndarray]:
        """Which samples are in which batch."""
        self.seen = []
        for begin in range(0, len(self.order), BATCH):
            yield self.order[begin : begin + BATCH]
        self.last = self.rows

    def drain(self, dataset: Any) -> None:
        """Reads all of a tf.data.Dataset."""
        self.seen = []
        for self.last, labels in dataset:
            self.seen.append(labels)

    def check_rows(self) -> None:
        """Arms that copy into one buffer have left the last batch there."""
        np.testing.assert_array_equal(self.rows, self.flat[self.order[-BATCH:]])
        self.rows[:] = 0

    def check_all(self) -> None:
        """All samples came once in each epoch, and the last batch is right."""
        labels = np.concatenate([np.asarray(each) for each in self.seen])
        np.testing.assert_array_equal(np.sort(labels), np.repeat(np.arange(len(self.data)), AT_ONCE))
        np.testing.assert_array_equal(np.asarray(self.last), self.data[np.asarray(self.seen[-1])])


def into_numpy(
    epoch: Epoch, level: Any, folder: pathlib.Path, memory: pathlib.Path, environment: lmdb.Environment
) -> dict[str, Arm]:
    """Arms that copy batches into one reused buffer.

    NumPy's own arrays may lie in huge pages, which a tmpfs normally does not have; so `take` has an arm on a tmpfs too.
    """
    shared = np.memmap(memory / "samples", np.uint8, "w+", shape=epoch.flat.shape)
    shared[:] = epoch.flat
    library, places = compile_kernel(folder), places_of(level, len(epoch.data))

    def slab() -> None:
        for indices in epoch.batches():
            assert level.gather(indices, epoch.rows, epoch.labels).all()

    def memcpy() -> None:
        for indices in epoch.batches():
            wanted = places[indices]
            library.copy_rows(wanted.ctypes.data, BATCH, epoch.rows.ctypes.data, SIZE)

    def take() -> None:
        for indices in epoch.batches():
            epoch.flat.take(indices.astype(np.int64), axis=0, out=epoch.rows, mode="clip")

    def take_shared() -> None:
        for indices in epoch.batches():
            shared.take(indices.astype(np.int64), axis=0, out=epoch.rows, mode="clip")

    def lmdb_on_tmpfs() -> None:
        for indices in epoch.batches():
            with environment.begin(buffers=True) as transaction:
                for row, index in enumerate(indices):
                    epoch.rows[row] = np.frombuffer(transaction.get(int(index).to_bytes(8, "big")), np.uint8)

    arms = {"memcpy": memcpy, "slab": slab, "slab, A/A": slab, "numpy take": take}
    arms |= {"numpy take, from /dev/shm": take_shared, "LMDB on tmpfs": lmdb_on_tmpfs}
    return {name: Arm(run, epoch.check_rows) for name, run in arms.items()}


def into_tf_data(epoch: Epoch, cache: datacache.DataCache) -> dict[str, Arm]:
    """Arms that read a tf.data.Dataset; those called busy have another Python thread beside them."""
    import tensorflow as tf

    ours, batches = cache.dataset(BATCH, epoch=1), cache.prepare(cache.schedule(BATCH, 1))

    def by_python(step: Any) -> Any:
        return tf.numpy_function(lambda step: batches.read(int(step)), [step], [tf.uint8, tf.int64], stateful=False)

    python = tf.data.Dataset.range(len(batches)).map(by_python, num_parallel_calls=2).prefetch(2)
    with tf.device("CPU"):
        slices = tf.data.Dataset.from_tensor_slices((epoch.data, np.arange(len(epoch.data))))
    rival = slices.cache().shuffle(len(epoch.data)).batch(BATCH).prefetch(2)
    read = {name: made.repeat(AT_ONCE) for name, made in {OURS: ours, PYTHON: python, RIVAL: rival}.items()}
    arms = {name: Arm(lambda made=made: epoch.drain(made), epoch.check_all) for name, made in read.items()}
    for name in (OURS, PYTHON):
        arms[f"{name}, busy"] = Arm(lambda made=read[name]: busy(lambda: epoch.drain(made)), epoch.check_all, rounds=3)
    return arms


def busy(work: Callable[[], None]) -> None:
    """Does the work while a thread of this process computes in Python."""
    done = threading.Event()

    def compute() -> None:
        while not done.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()


def compile_kernel(folder: pathlib.Path) -> ctypes.CDLL:
    """A plain loop of memcpy."""
    source, library = folder / "copy.cc", folder / "copy.so"
    source.write_text(KERNEL)
    subprocess.run(["c++", "-O3", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.copy_rows.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64]
    return loaded


def places_of(level: Any, count: int) -> np.ndarray:
    """The addresses of all payloads in a slab, from its table: see ops/datacache/slab.cc."""
    handle = level.lend(lambda: None)
    table = (ctypes.c_uint64 * (5 * count)).from_address(handle.base + 4096)
    return np.frombuffer(table, np.uint64).reshape(count, 5)[:, 1] + np.uint64(handle.base)


@contextlib.contextmanager
def lmdb_of(data: np.ndarray, memory: pathlib.Path) -> Iterator[lmdb.Environment]:
    """The samples in LMDB on a tmpfs, in the order of their keys, opened with options for speed."""
    path = str(memory / "lmdb")
    with lmdb.open(path, map_size=2 * data.nbytes + (64 << 20), sync=False) as environment:
        with environment.begin(write=True) as transaction:
            for index, sample in enumerate(data):
                transaction.put(index.to_bytes(8, "big"), sample.tobytes(), append=True)
    with lmdb.open(path, readonly=True, lock=False, readahead=False) as environment:
        yield environment


# ---- eight processes ----


def shared_bytes(folder: pathlib.Path, memory: pathlib.Path, processes: int) -> int:
    """Fills and reads a slab in several processes; the sum of what the kernel counts as each one's share of it."""
    command = [sys.executable, "-m", "benchmarks.datacache.memory", "--reader", str(folder), str(memory)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    readers = [subprocess.Popen([*command, str(rank), str(processes)], **pipes) for rank in range(processes)]
    try:
        for reader in readers:
            assert reader.stdout.readline() == "read\n", "a reader has failed"
        return sum(share_of(reader.pid) for reader in readers)
    finally:
        for reader in readers:
            reader.communicate("")


def share_of(process: int) -> int:
    """PSS of the mappings of slabs, in bytes."""
    total, inside = 0, False
    for line in pathlib.Path(f"/proc/{process}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(".slab")
        elif inside and line.startswith("Pss:"):
            total += 1024 * int(line.split()[1])
    return total


def be_reader(folder: str, memory: str, rank: str, processes: str) -> None:
    """One of several processes on a node: reads its part of two epochs, and all of the slab once."""
    data = np.load(pathlib.Path(folder) / "samples.npy", mmap_mode="r")
    world = datacache.World(int(rank), int(processes))
    with open_cache(pathlib.Path(folder), pathlib.Path(memory), world) as cache:
        for epoch in range(2):
            for samples, labels in cache.batches(BATCH, epoch, drop_remainder=True):
                np.testing.assert_array_equal(samples, data[labels])
        for index in range(len(cache)):
            cache.fetch(index)
        print("read", flush=True)
        sys.stdin.read()


# ---- the report ----


def measure(
    folder: pathlib.Path, progress: Callable[[str], Any], samples: int = SAMPLES, rounds: int = ROUNDS
) -> Section:
    """Times all arms, and judges the targets.

    Args:
        folder: with room for about 27 KB per sample.
        progress: called with progress messages.
        samples: a multiple of the batch; /dev/shm gets about three times their size.
        rounds: epochs of each arm.
    """
    progress("memory level: making samples")
    data = np.random.default_rng(0).integers(0, 256, (samples, *SHAPE), np.uint8)
    np.save(folder / "samples.npy", data)
    with tempfile.TemporaryDirectory(dir=SHARED, prefix="datacache-benchmark-") as name:
        memory = pathlib.Path(name)
        progress(f"memory level: {PROCESSES} processes share a slab")
        shared = shared_bytes(folder, memory, PROCESSES) / data.nbytes
        epoch = Epoch(data)
        with open_cache(folder, memory, datacache.World()) as cache, lmdb_of(data, memory) as environment:
            for _ in cache.batches(BATCH, 0):
                pass
            level = cache.prepare(cache.schedule(BATCH, 0)).memory
            progress("memory level: all arms in turn")
            arms = {**into_numpy(epoch, level, folder, memory, environment), **into_tf_data(epoch, cache)}
            times = timing.interleave(arms, rounds, before=lambda: None)
    return section(times, shared, samples)


def section(times: dict[str, Timing], shared: float, samples: int) -> Section:
    """The tables and the verdicts."""
    counts = {name: samples * (AT_ONCE if name.startswith("tf.data") else 1) for name in times}
    micros = {name: 1e3 * taken.median / counts[name] for name, taken in times.items()}
    spread = {name: 1e3 * taken.p95 / counts[name] for name, taken in times.items()}
    overhead = micros["slab"] - micros["memcpy"]

    def ratio(what: str, ours: str, rival: str, least: float) -> Verdict:
        reached = micros[rival] / micros[ours]
        return Verdict(what, f">= {least}", f"{reached:.2f}", reached >= least)

    verdicts = [
        ratio("slab, checked, against numpy's take", "slab", "numpy take", 0.9),
        ratio("slab, checked, against take from /dev/shm", "slab", "numpy take, from /dev/shm", 0.9),
        ratio("slab, checked, against LMDB on tmpfs", "slab", "LMDB on tmpfs", 1.3),
        ratio("into tf.data against cache().shuffle().batch()", OURS, RIVAL, 3.0),
        Verdict("over memcpy with checksums, us a sample", "<= 1.2", f"{overhead:.2f}", overhead <= 1.2),
        Verdict(
            "over memcpy, us a sample (wanted without checksums; there is only the checked way)",
            "<= 0.5",
            f"{overhead:.2f}",
            overhead <= 0.5,
        ),
        Verdict(f"PSS of {PROCESSES} processes, of the data", "<= 1.05", f"{shared:.3f}", shared <= 1.05),
    ]
    lines = [
        f"{samples:,} samples of 96x96x3 bytes, batch {BATCH}, random order, all arms in turn, an epoch each, checked.",
        "",
        "| arm | us a sample, median (p95) | samples/s | epochs |",
        "|---|---|---|---|",
        *(
            f"| {name} | {micros[name]:.2f} ({spread[name]:.2f}) | {1e6 / micros[name]:,.0f} | {times[name].rounds} |"
            for name in times
        ),
        "",
        *report.table(verdicts),
    ]
    figures = {"us a sample": micros, "p95": spread, "shared": shared, "samples": samples}
    return Section("The memory level", lines, figures, verdicts)


def main() -> None:
    """Runs it alone."""
    if sys.argv[1:2] == ["--reader"]:
        be_reader(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser("python -m benchmarks.datacache.memory", description=__doc__)
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, help=f"number of samples, a multiple of {BATCH} (default: {SAMPLES})"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if options.samples < PROCESSES * BATCH or options.samples % BATCH:
        parser.error(f"expected a multiple of {BATCH}, at least {PROCESSES * BATCH} samples, got {options.samples}")
    with tempfile.TemporaryDirectory() as folder:
        made = measure(pathlib.Path(folder), print, options.samples, options.rounds)
    print("\n".join([f"# {made.title}", "", str(timing.machine()), "", *made.lines]))


if __name__ == "__main__":
    main()
