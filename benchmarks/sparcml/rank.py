"""One rank of bench_sparcml.py: python -m benchmarks.sparcml.rank JOB RESULTS.

JOB is a JSON file: {"cells": [...], "overlaps": [...]}, as in `bench_sparcml.measure`. Rank 0 writes RESULTS: for each
cell and arm the seconds of each round (the slowest rank's), the bytes that each node's interface sent over all rounds,
and what `auto` chose in each; for each overlap the seconds of each round. Every result is compared with Horovod's sum
of the dense vectors; values are small integers, so that it has to be exact. A wrong result ends the run.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as horovod
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.exchange.rank import Clock, forget, idle_bytes_per_second, job_and_results, sent_bytes, write_json
from benchmarks.reporting.timing import shuffled
from benchmarks.sparcml.overlap import run_overlap
from benchmarks.sparcml.report import AUTO_AGAIN, DENSE_ARMS, HOROVOD_SLICES
from hvd_sparse import collectives

Call = Callable[[], Any]


class Sum:
    """The data of a cell: this rank's rows, and the expected sum over all ranks.

    Attributes:
        slices: this rank's rows: float32 values of 1 to 4, ascending indices.
        dense: [size], the same as a vector.
    """

    def __init__(self, size: int, density: float, sets: str):
        drawn = np.random.default_rng(0 if sets == "identical" else 1 + hvd.rank())
        kept = max(1, round(size * density))
        indices = np.sort(drawn.choice(size, kept, replace=False, shuffle=False)).astype(np.int32)
        values = drawn.integers(1, 5, kept).astype(np.float32)
        vector = np.zeros(size, np.float32)
        vector[indices] = values
        self.slices = tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([size]))
        self.dense = tf.constant(vector)
        self._total = horovod.allreduce(self.dense, op=horovod.Sum, name="total").numpy()
        self._indices = np.flatnonzero(self._total)
        self._values = self._total[self._indices]

    @property
    def union(self) -> int:
        """Rows that at least one rank has."""
        return len(self._indices)

    def check(self, name: str, result: Any) -> None:
        """Raises AssertionError if a result is not exactly the sum."""
        if not self._is_right(result):
            raise AssertionError(f"{name}: rank {hvd.rank()} got a wrong result")

    def _is_right(self, result: Any) -> bool:
        if not isinstance(result, tf.IndexedSlices):
            return np.array_equal(result.numpy(), self._total)
        values, indices = result.values.numpy(), result.indices.numpy()
        if (np.diff(indices) <= 0).any():  # as gathered by Horovod
            return np.array_equal(np.bincount(indices, values, len(self._total)), self._total)
        there = np.flatnonzero(values)  # a piece that was sent dense contains all rows
        return np.array_equal(indices[there], self._indices) and np.array_equal(values[there], self._values)


def make_arm(name: str, vectors: Sum, number: int) -> Call:
    """The call that an arm's name denotes."""
    if name in DENSE_ARMS:
        return lambda: horovod.allreduce(vectors.dense, op=horovod.Sum, name=f"{name}.{number}")
    if name == HOROVOD_SLICES:
        return lambda: horovod.allreduce(vectors.slices, op=horovod.Sum, name=f"{name}.{number}")
    collective = getattr(collectives, "auto" if name == AUTO_AGAIN else name)
    return functools.partial(collective, vectors.slices, hvd.topology.world(), name=f"{name}.{number}")


def takes_part(number: int, rounds: int, of: int) -> bool:
    """Whether an arm that is timed `rounds` times, evenly among `of` rounds, is in round `number`."""
    return number * rounds // of < (number + 1) * rounds // of


def run_cell(cell: dict, number: int, clock: Clock) -> dict[str, Any]:
    """Times the arms of one cell in turn, in a different order each round, the same on every rank."""
    vectors = Sum(cell["size"], cell["density"], cell["sets"])
    arms = {name: make_arm(name, vectors, number) for name in cell["rounds"]}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    sent = dict.fromkeys(arms, 0)
    chosen: dict[str, list[str]] = {name: [] for name in arms if name.startswith("auto")}  # auto continues to learn
    world = hvd.topology.world()
    rounds = max(cell["rounds"].values())
    for arm in [arm for name, arm in arms.items() if name.startswith("auto")] * cell["tries"]:
        arm()
    for turn in range(-cell["warm"], rounds):
        for name in shuffled(arms, 1000 * number + turn):
            if turn >= 0 and not takes_part(turn, cell["rounds"][name], rounds):
                continue
            before = sent_bytes()
            result, taken = clock.time(arms[name])
            clock.meet()
            if turn >= 0:
                seconds[name].append(taken)
                sent[name] += sent_bytes() - before
                if name in chosen:
                    chosen[name].append(collectives.auto.chosen(world, f"{name}.{number}"))
            vectors.check(name, result)
            del result  # frees its memory for reuse
    return {"seconds": seconds, "sent": sent, "chosen": chosen, "union": vectors.union}


def slowest(own: dict[str, list[float]], everyones: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """The slowest rank's seconds of each round, with the arms in this rank's order."""
    return {name: np.max([rank[name] for rank in everyones], axis=0).tolist() for name in own}


def gather_cell(own: dict[str, Any]) -> dict[str, Any]:
    """A cell's figures: the slowest rank's seconds, and the bytes sent by each node."""
    everyones = hvd.topology.world().gather_descriptions(own, "cell")
    seconds = slowest(own["seconds"], [rank["seconds"] for rank in everyones])
    sent = {name: [rank["sent"][name] for rank in everyones] for name in own["sent"]}
    return {**own, "seconds": seconds, "sent": sent}


def main() -> None:
    job, path = job_and_results(__doc__)
    hvd.init(local_size=1)
    world, clock = hvd.topology.world(), Clock()
    clock.meet()
    results: dict[str, Any] = {"idle": idle_bytes_per_second(clock), "cells": [], "overlaps": []}
    for number, cell in enumerate(job["cells"]):
        began = time.perf_counter()
        figures = gather_cell(run_cell(cell, number, clock))
        results["cells"].append({**cell, **figures})
        forget()
        medians = {name: 1e3 * float(np.median(taken)) for name, taken in figures["seconds"].items()}
        shown = ", ".join(f"{name} {median:.1f}" for name, median in medians.items())
        if world.rank == 0:
            spent = time.perf_counter() - began
            print(f"  density {cell['density']:.4%}, {cell['sets']} ({spent:.0f} s): ms {shown}", flush=True)
    for number, overlap in enumerate(job["overlaps"]):
        vectors = Sum(overlap["size"], overlap["density"], "uniform")
        taken = run_overlap(overlap["collective"], vectors.slices, vectors.check, overlap["rounds"], number, clock)
        seconds = slowest(taken.seconds, world.gather_descriptions(taken.seconds, "overlap"))
        results["overlaps"].append({**overlap, "matmul": taken.matmul, "seconds": seconds})
        forget()
    if world.rank == 0:
        write_json(path, results)


if __name__ == "__main__":
    main()
