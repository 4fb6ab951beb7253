"""What one rank does for bench_exchange.py: python -m benchmarks.exchange.rank JOB RESULTS.

JOB is a JSON file: {"local": n, "cells": [{"size": d, "density": ..., "groups": [[arm, ...], ...], "rounds": {arm: r},
"warm": {arm: rounds before these, which do not count}, "steps": whether the steps of HiTopKComm are timed too}]}. Rank
0 writes RESULTS: for each cell and arm the seconds of each round (the slowest rank's) and the bytes that each node's
interface sent over all rounds. The first two results of each arm are checked: they must be correct and equal on all
ranks. An error in one of our arms ends the run; errors of rivals are counted.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import json
import pathlib
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.exchange import arm_recipes
from benchmarks.exchange import arms as exchange_arms
from hvd_sparse.tuning import planner

IDLE_SECONDS = 2.0
# Entries are those of a normal distribution. Each rank's, and each sum of ranks, is rounded to float16: at values up to
# 8 by 4e-3 at most, and the mean divides the sum of these errors by the number of ranks.
FP16_TOLERANCE = 4e-3
_COUNTERS = pathlib.Path("/sys/class/net/eth0/statistics")


def sent_bytes() -> int:
    """Bytes that this node's interface has sent so far, headers included; 0 if there is no such interface."""
    counter = _COUNTERS / "tx_bytes"
    return int(counter.read_text()) if counter.exists() else 0


def make_arm(name: str, size: int, density: float, job: dict) -> exchange_arms.Exchange:
    """The function that an arm's name stands for."""
    makers: dict[str, Callable[[], exchange_arms.Exchange]] = {
        "horovod.allreduce": exchange_arms.horovod_allreduce,
        "horovod.allreduce, A/A": exchange_arms.horovod_allreduce,
        "horovod.allreduce-fp16": exchange_arms.horovod_fp16,
        "NaiveAG, literal": lambda: exchange_arms.literal_naive_allgather(size, density),
        "2DTAR, literal": lambda: exchange_arms.literal_torus(size),
        "torch.distributed": lambda: exchange_arms.torch_allreduce(size, job["address"], job["port"]),
        "mpi4py": lambda: exchange_arms.mpi_allreduce(size),
    }
    maker = makers.get(name)
    return exchange_arms.Ours(name, size, density) if maker is None else maker()


class Clock:
    """Times calls from when all ranks are ready until the slowest is done."""

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


def is_right(name: str, pieces: list[Any], gradient: tf.Tensor) -> bool:
    """Whether all ranks hold the same bits, and a dense result is the mean of the gradients; alike on all ranks."""
    world = hvd.topology.world()
    arrays = [np.asarray(piece) for piece in pieces]
    crc = functools.reduce(lambda crc, array: zlib.crc32(np.ascontiguousarray(array), crc), arrays, 0)
    low, high = (int(world.allreduce(tf.constant(crc, tf.int64), op, f"check.{op}")) for op in ("min", "max"))
    right = low == high
    if name not in exchange_arms.SPARSE:
        stride = max(1, arrays[0].size // 1000)
        sample = gradient[: arrays[0].size : stride]
        wanted = world.allreduce(sample, "sum", "check.sample").numpy() / world.size
        tolerance = FP16_TOLERANCE if arm_recipes.sends_halves(name) else 1e-5
        right = right and np.allclose(arrays[0][::stride], wanted, rtol=1e-4, atol=tolerance)
    return bool(world.allreduce(tf.constant(int(right)), "min", "check.right") == 1)


def run_cell(cell: dict, job: dict, clock: Clock) -> dict:
    """Times the arms of one cell; those of a group take turns."""
    random = np.random.default_rng(hvd.rank())
    gradient = tf.constant(random.standard_normal(cell["size"], dtype=np.float32))
    result: dict[str, dict] = {"seconds": {}, "sent": {}, "spans": {}, "wrong": {}, "decided": {}, "steps": {}}
    for group in cell["groups"]:
        for what, figures in run_group(group, cell, gradient, job, clock).items():
            result[what].update(figures)
        forget()
    wrong = [name for name, count in result["wrong"].items() if count]
    ours = [name for name in wrong if hasattr(hvd.recipes, arm_recipes.in_full(name))]
    if ours:
        raise AssertionError(f"Results are wrong, or differ between ranks: {', '.join(ours)}")
    if cell["steps"]:
        result["steps"] = run_steps(cell, gradient, clock)
        forget()
    return result


def run_group(group: list[str], cell: dict, gradient: tf.Tensor, job: dict, clock: Clock) -> dict[str, dict]:
    """Times arms in turn, after warm-up rounds; each round begins with another arm.

    Otherwise what an arm leaves behind, in caches and in threads still awake, would always affect the same next arm.
    """
    arms = {name: make_arm(name, cell["size"], cell["density"], job) for name in group}
    rounds, warm = ({name: cell[what][name] for name in group} for what in ("rounds", "warm"))
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    sent = dict.fromkeys(arms, 0)
    wrong = dict.fromkeys(arms, 0)  # of the first two results
    spans = dict.fromkeys(arms, 0.0)  # seconds between the readings of the counters, waiting included
    for number in range(-max(warm.values()), max(rounds.values())):
        first = number % len(group)
        for name in group[first:] + group[:first]:
            arm = arms[name]
            if not -warm[name] <= number < rounds[name]:
                continue
            before, began = sent_bytes(), time.perf_counter()
            mean, taken = clock.time(lambda arm=arm: arm(gradient))
            clock.meet()
            if number >= 0:
                seconds[name].append(taken)
                sent[name] += sent_bytes() - before
                spans[name] += time.perf_counter() - began
            if number < 2 - warm[name]:
                wrong[name] += not is_right(name, mean, gradient)
            del mean  # frees its memory for reuse
    decided = {name: arm.decided for name, arm in arms.items() if isinstance(arm, exchange_arms.Ours)}
    return {"seconds": seconds, "sent": sent, "spans": spans, "wrong": wrong, "decided": decided}


def forget() -> None:
    """Frees the memory of earlier arms: a function and its graph refer to each other, and to residuals."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # pieces of 25 MB are not given back by themselves


def run_steps(cell: dict, gradient: tf.Tensor, clock: Clock) -> dict[str, list[float]]:
    """Times the four steps of HiTopKComm one by one."""
    steps = exchange_arms.HitopkSteps(cell["size"], cell["density"])
    seconds: dict[str, list[float]] = {name: [] for name in steps.names}
    for number in range(-cell["warm"]["hitopk"], cell["rounds"]["hitopk"]):
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
    """The slowest rank's seconds of each round, and each node's total bytes sent, in the order of `own`."""

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
        "decided": own["decided"],
    }


def idle_bytes_per_second(clock: Clock) -> list[float]:
    """Bytes per second of each node while nothing is exchanged: Horovod's control traffic."""
    clock.meet()
    before, start = sent_bytes(), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    rate = (sent_bytes() - before) / (time.perf_counter() - start)
    everyones = hvd.topology.world().gather_descriptions(rate, "idle")
    return everyones[:: hvd.topology.node().size]


def job_and_results(description: str | None) -> tuple[dict[str, Any], pathlib.Path]:
    """The command line of a rank program, JOB RESULTS: what to do, from the JSON file JOB, and where results go."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    options = parser.parse_args()
    return json.loads(options.job.read_text()), options.results


def write_json(path: pathlib.Path, data: Any) -> None:
    """Writes JSON by temporary name and rename."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data))
    part.replace(path)


def main() -> None:
    job, path = job_and_results(__doc__)
    tf.get_logger().setLevel("ERROR")  # every cell traces its arms anew, as it should
    hvd.init(local_size=job["local"])
    clock = Clock()
    clock.meet()
    results = {"idle": idle_bytes_per_second(clock), "cluster": planner.measure(), "cells": []}
    if hvd.rank() == 0:
        write_json(path, results)
    for cell in job["cells"]:
        own = run_cell(cell, job, clock)
        everyones = hvd.topology.world().gather_descriptions(own, "cell")
        if hvd.rank() == 0:
            merged = merge(own, everyones)
            results["cells"].append({**cell, **merged})
            write_json(path, results)
            medians = {name: 1e3 * float(np.median(taken)) for name, taken in merged["seconds"].items()}
            shown = ", ".join(f"{name} {median:.0f}" for name, median in medians.items())
            print(f"  d = {cell['size']:,}, density {cell['density']}: ms {shown}", flush=True)


if __name__ == "__main__":
    main()
