"""One rank of bench_train.py: python -m benchmarks.train.rank JOB RESULTS.

JOB is a JSON file: {"local": n, "model": one of train_models.TASKS, "size": {} or changes to the task's own, "arms":
[...], "density": ..., "steps": timed steps of each arm}. Rank 0 writes RESULTS: for each arm the seconds of each block
(the slowest rank's), the bytes that each node's interface sent, the mean breakdown of a step, and the telemetry. It
checks that losses are finite, that ranks with an exchange stay bitwise equal and others do not, and that the first mean
gradient of a dense recipe equals Horovod's. Later gradients cannot be compared: in a freshly initialised ResNet-50, two
steps turn a difference of 1e-6 into one of 1e-2, with any exchange and with none.
"""

from __future__ import annotations

import dataclasses
import resource
import time
import zlib
from typing import Any

import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.exchange import arm_recipes
from benchmarks.exchange.rank import Clock, idle_bytes_per_second, job_and_results, sent_bytes, write_json
from benchmarks.train import breakdown as train_breakdown
from benchmarks.train import models as train_models
from benchmarks.train.arms import AGAIN, HOROVOD, NOTHING, Arm

BLOCK = 3  # consecutive steps of an arm, before the next arm's turn
WARM_UP = 2  # steps that are not timed; the graph is made in the first one
MEAN_TOLERANCE = 1e-5  # relative, of the norm: a few gradients in float32, summed in different orders
FP16_TOLERANCE = 1e-3  # the same, each rounded to float16, which has 11 bits


@dataclasses.dataclass
class Record:
    """One rank's measurements of one arm."""

    seconds: list[float] = dataclasses.field(default_factory=list)  # per block
    sent: int = 0  # bytes, over all blocks
    marks: list[train_breakdown.Marks] = dataclasses.field(default_factory=list)


def run_block(arm: Arm, steps: int, clock: Clock, record: Record) -> None:
    """Takes some training steps, beginning when all ranks are ready."""
    clock.meet()
    before = sent_bytes()
    marks = arm.run(steps)
    record.seconds.append(marks[-1].ended - marks[0].asked)
    record.marks += marks
    clock.meet()
    record.sent += sent_bytes() - before


def train(job: dict, clock: Clock) -> tuple[dict[str, Arm], dict[str, Record]]:
    """Warms the arms up, then trains with all of them in turn; each round begins with a different one."""
    task = train_models.TASKS[job["model"]]
    size = dataclasses.replace(task.size, **job["size"])
    # All arms are made before any runs: seeding makes TensorFlow optimise every graph again.
    arms = {name: Arm(name, task, size, job["density"]) for name in job["arms"] if name != AGAIN}
    first_mean = None
    for name, arm in arms.items():
        began = time.perf_counter()
        run_block(arm, 1, clock, Record())
        if arm.sends_all:
            first_mean = arm.kept_by_optimizer() if first_mean is None else first_mean
            check_mean(name, arm.kept_by_optimizer(), first_mean)
        run_block(arm, WARM_UP - 1, clock, Record())
        _say(f"  {job['model']}, {name}: graph built and warmed up after {time.perf_counter() - began:.0f} s")
    records = {name: Record() for name in job["arms"]}
    for number in range(-(-job["steps"] // BLOCK)):
        shift = number % len(records)
        for name in [*records, *records][shift : shift + len(records)]:
            run_block(arms[HOROVOD if name == AGAIN else name], BLOCK, clock, records[name])
    return arms, records


def check(arms: dict[str, Arm]) -> None:
    """Checks that losses are finite, and that replicas are equal exactly where they should be.

    Statistics of batch normalisation belong to each rank, as in Horovod, and are not compared.

    Raises:
        AssertionError: if a check fails; it names the arm.
    """
    for name, arm in arms.items():
        if not np.all(np.isfinite(arm.losses)):
            raise AssertionError(f"{name}: a loss is not finite: {arm.losses}")
        if replicas_equal(arm) != (name != NOTHING):
            raise AssertionError(f"{name}: the ranks' variables are {'equal' if name == NOTHING else 'not equal'}")


def check_mean(name: str, kept: np.ndarray, first: np.ndarray) -> None:
    """Checks that the optimizers of two arms received the same first mean gradient, except for rounding."""
    error = np.linalg.norm(kept - first) / np.linalg.norm(first)
    if not error <= (FP16_TOLERANCE if arm_recipes.sends_halves(name) else MEAN_TOLERANCE):
        raise AssertionError(f"{name}: the first mean differs from the first dense arm's, by a relative {error:.1e}")


def replicas_equal(arm: Arm) -> bool:
    """Whether all ranks hold bitwise equal trainable variables."""
    digest = 0
    for variable in arm.model.trainable_variables:
        digest = zlib.crc32(np.ascontiguousarray(variable.value.numpy()), digest)
    world = hvd.topology.world()
    low, high = (int(world.allreduce(tf.constant(digest, tf.int64), op, f"replicas.{op}")) for op in ("min", "max"))
    return low == high


def merged(name: str, everyones: list[dict[str, Any]]) -> dict[str, Any]:
    """Combines one arm's figures from all ranks."""
    own = [rank["records"][name] for rank in everyones]
    marks = [
        [train_breakdown.Marks(*step[:-1], tuple(map(tuple, step[-1]))) for step in record["marks"]] for record in own
    ]
    node = hvd.topology.node().size
    figures = [rank["figures"].get(name, {}) for rank in everyones]
    return {
        "seconds": np.max([record["seconds"] for record in own], axis=0).tolist(),
        "sent": [record["sent"] for record in own[::node]],
        "breakdown": train_breakdown.summary(marks),
        "telemetry": {
            key: float(np.mean([rank[key] for rank in figures]))
            for key, value in figures[0].items()
            if isinstance(value, int | float) and key not in ("gradient_norm", "step")
        },
        "last loss": everyones[0]["losses"].get(name),
    }


def _say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


def main() -> None:
    job, path = job_and_results(__doc__)
    hvd.init(local_size=job["local"])
    clock = Clock()
    clock.meet()
    idle = idle_bytes_per_second(clock)
    arms, records = train(job, clock)
    check(arms)
    own = {
        "records": {name: dataclasses.asdict(record) for name, record in records.items()},
        "figures": {name: arm.figures() for name, arm in arms.items()},
        "losses": {name: arm.losses[-1] for name, arm in arms.items()},
        "memory": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    everyones = hvd.topology.world().gather_descriptions(own, "train")
    if hvd.rank() == 0:
        first = next(iter(arms.values()))
        results = {
            "model": job["model"],
            "size": dataclasses.asdict(dataclasses.replace(train_models.TASKS[job["model"]].size, **job["size"])),
            "parameters": sum(int(np.prod(variable.shape)) for variable in first.model.trainable_variables),
            "density": job["density"],
            "block": BLOCK,
            "idle": idle,
            "memory": sum(rank["memory"] for rank in everyones),
            "arms": {name: merged(name, everyones) for name in records},
        }
        write_json(path, results)


if __name__ == "__main__":
    main()
