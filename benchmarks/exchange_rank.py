"""What one rank does for bench_exchange.py: python -m benchmarks.exchange_rank JOB RESULTS.

JOB is a JSON file: {"local": n, "cells": [{"size": d, "density": ..., "arms": [...], "rounds": {arm: r}}]}. Rank 0
writes RESULTS: for each cell and arm the seconds of each round (the slowest rank's) and the bytes that each node's
interface has sent, over all rounds. The first two results of each arm are checked: equal on all ranks, and right. If
one of ours is not, the run ends; a rival's is counted.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks import exchange_arms
from hvd_sparse import planner

IDLE_SECONDS = 2.0
_COUNTERS = pathlib.Path("/sys/class/net/eth0/statistics")


def sent_bytes() -> int:
    """What this node's interface has sent so far, headers included; 0 where there is no such interface."""
    counter = _COUNTERS / "tx_bytes"
    return int(counter.read_text()) if counter.exists() else 0


def make_arm(name: str, size: int, density: float, job: dict) -> exchange_arms.Exchange:
    """The function that an arm's name stands for."""
    makers: dict[str, Callable[[], exchange_arms.Exchange]] = {
        "horovod.allreduce": exchange_arms.horovod_allreduce,
        "horovod.allreduce, A/A": exchange_arms.horovod_allreduce,
        "NaiveAG, literal": lambda: exchange_arms.literal_naive_allgather(size, density),
        "2DTAR, literal": lambda: exchange_arms.literal_torus(size),
        "torch.distributed": lambda: exchange_arms.torch_allreduce(size, job["address"], job["port"]),
        "mpi4py": lambda: exchange_arms.mpi_allreduce(size),
    }
    maker = makers.get(name)
    return exchange_arms.ours(name, size, density) if maker is None else maker()


class Clock:
    """Times calls from a moment when all ranks are ready until the slowest is done."""

    def __init__(self) -> None:
        self._number = 0

    def meet(self) -> None:
        """Waits for all ranks."""
        self._number += 1
        hvd.topology.world().allreduce(tf.constant(self._number), "max", f"meet.{self._number % 8}")

    def time(self, run: Callable[[], Any]) -> tuple[Any, float]:
        """The result of a call, and this rank's seconds."""
        self.meet()
        start = time.perf_counter()
        result = run()  # in eager mode on a CPU: returns when all of it is there
        return result, time.perf_counter() - start


def is_right(mean: np.ndarray, gradient: tf.Tensor, exact: bool) -> bool:
    """Whether all ranks hold the same bits, and a dense result is the mean of the gradients; alike on all ranks."""
    world = hvd.topology.world()
    digest = tf.constant(zlib.crc32(np.ascontiguousarray(mean)), tf.int64)
    low, high = (int(world.allreduce(digest, op, f"check.{op}")) for op in ("min", "max"))
    right = low == high
    if exact:
        stride = max(1, mean.size // 1000)
        wanted = world.allreduce(gradient[::stride], "sum", "check.sample").numpy() / world.size
        right = right and np.allclose(mean[::stride], wanted, rtol=1e-4, atol=1e-5)
    return bool(world.allreduce(tf.constant(int(right)), "min", "check.right") == 1)


def run_cell(cell: dict, job: dict, clock: Clock) -> dict:
    """Times the arms of one cell in turn."""
    size, density = cell["size"], cell["density"]
    random = np.random.default_rng(hvd.rank())
    gradient = tf.constant(random.standard_normal(size, dtype=np.float32))
    arms = {name: make_arm(name, size, density, job) for name in cell["arms"] if name != "hitopk steps"}
    sparse = {"topk", "mstopk", "hitopk", "auto", "NaiveAG, literal"}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    sent = dict.fromkeys(arms, 0)
    wrong = dict.fromkeys(arms, 0)  # of the first two results
    spans = dict.fromkeys(arms, 0.0)  # seconds between the readings of the counters, waiting included
    for number in range(-1, max(cell["rounds"].values())):
        for name, arm in arms.items():
            if number >= cell["rounds"][name]:
                continue
            before, began = sent_bytes(), time.perf_counter()
            mean, taken = clock.time(lambda arm=arm: arm(gradient))
            clock.meet()
            if number >= 0:
                seconds[name].append(taken)
                sent[name] += sent_bytes() - before
                spans[name] += time.perf_counter() - began
            if number < 1:
                wrong[name] += not is_right(np.concatenate(mean), gradient, name not in sparse)
            del mean  # else its memory could not be used again
    ours = [name for name in arms if wrong[name] and hasattr(hvd.recipes, name)]
    if ours:
        raise AssertionError(f"Wrong results, or different ones on different ranks: {', '.join(ours)}")
    result = {"seconds": seconds, "sent": sent, "spans": spans, "wrong": wrong, "steps": {}}
    if "hitopk steps" in cell["arms"]:
        result["steps"] = run_steps(cell, gradient, clock)
    return result


def run_steps(cell: dict, gradient: tf.Tensor, clock: Clock) -> dict[str, list[float]]:
    """Times the four steps of HiTopKComm one by one."""
    steps = exchange_arms.HitopkSteps(cell["size"], cell["density"])
    seconds: dict[str, list[float]] = {name: [] for name in steps.names}
    for number in range(-1, cell["rounds"]["hitopk"]):
        taken: list[float] = []

        def timed(run: Callable[[], Any], taken: list[float] = taken) -> Any:
            result, elapsed = clock.time(run)
            taken.append(elapsed)
            return result

        steps.run(gradient, timed)
        if number >= 0:
            for name, elapsed in zip(steps.names, taken, strict=True):
                seconds[name].append(elapsed)
    return seconds


def merge(own: dict, everyones: list[dict]) -> dict:
    """The slowest rank's seconds of each round, and the bytes each node has sent in all, in the order of `own`."""

    def slowest(what: str) -> dict[str, list[float]]:
        return {name: np.max([rank[what][name] for rank in everyones], axis=0).tolist() for name in own[what]}

    nodes = range(0, len(everyones), hvd.topology.node().size)
    sent = {name: [everyones[rank]["sent"][name] for rank in nodes] for name in own["sent"]}
    return {
        "seconds": slowest("seconds"),
        "steps": slowest("steps"),
        "sent": sent,
        "spans": own["spans"],
        "wrong": own["wrong"],
    }


def idle_bytes_per_second(clock: Clock) -> list[float]:
    """What each node sends while nothing is exchanged: Horovod's control traffic."""
    clock.meet()
    before, start = sent_bytes(), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    rate = (sent_bytes() - before) / (time.perf_counter() - start)
    everyones = hvd.topology.world().gather_descriptions(rate, "idle")
    return everyones[:: hvd.topology.node().size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    options = parser.parse_args()
    job = json.loads(options.job.read_text())
    tf.get_logger().setLevel("ERROR")  # every cell traces its arms anew, as it should
    hvd.init(local_size=job["local"])
    clock = Clock()
    clock.meet()
    results = {"idle": idle_bytes_per_second(clock), "cluster": planner.measure(), "cells": []}
    for cell in job["cells"]:
        own = run_cell(cell, job, clock)
        everyones = hvd.topology.world().gather_descriptions(own, "cell")
        if hvd.rank() == 0:
            merged = merge(own, everyones)
            results["cells"].append({**cell, **merged})
            part = options.results.with_suffix(".part")
            part.write_text(json.dumps(results))
            part.replace(options.results)
            medians = {name: 1e3 * float(np.median(taken)) for name, taken in merged["seconds"].items()}
            shown = ", ".join(f"{name} {median:.0f}" for name, median in medians.items())
            print(f"  d = {cell['size']:,}, density {cell['density']}: ms {shown}", flush=True)


if __name__ == "__main__":
    main()
