"""What one rank does for dct_training.py: python -m benchmarks.dct_rank JOB RESULTS.

JOB is a JSON file: {"trainers": 2, "stages": 2, "batch": B, "micro": M, "steps": n, "rounds": [[arm, ...], ...]}, with
arms as `dct_training.Arm`. Rank 0 writes RESULTS: for each arm of each round what every rank has done. After each
round trainers compare their weights.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.exchange_rank import Clock, idle_bytes_per_second, sent_bytes, write_json
from examples.recommenders.dlrm import dlrm

FEATURES, TABLES, ROWS = 13, 26, 4096
AFTER = {2: ["bottom_2"], 3: ["bottom_2", "top_2"]}
WARM = 3  # steps that do not count


def made_up(batch: int, seed: int) -> tuple[dict[str, Any], Any]:
    """A batch of Criteo's form; few categories are frequent, and most are rare."""
    random = np.random.default_rng(seed)
    numbers = random.standard_normal((batch, FEATURES), np.float32)
    categories = np.minimum(random.zipf(1.3, (batch, TABLES)) - 1, ROWS - 1).astype(np.int32)
    labels = (numbers[:, 0] + 0.1 * (categories[:, 0] % 7) > 0.3).astype(np.float32)
    return {"numbers": tf.constant(numbers), "categories": tf.constant(categories)}, tf.constant(labels[:, None])


class Trained:
    """One arm's model, and its batches."""

    def __init__(self, arm: dict, job: dict, grid: hvd.pipeline.Grid):
        whole = dlrm(FEATURES, [ROWS] * TABLES)
        parts = hvd.pipeline.split(whole, AFTER[grid.stages])
        self._model = hvd.pipeline.Stages(
            parts, job["micro"], sparsity=arm["sparsity"], wire_dtype=arm["wire"], grid=grid
        )
        dense = arm["density"] is None
        recipe = hvd.recipes.dense() if dense else hvd.recipes.dct(sparsity=1.0 - arm["density"])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), aggregator=recipe, process_set=grid.process_set)
        self._model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
        trainer = grid.trainer_of(hvd.rank())
        self._batches = [made_up(job["batch"], 100 * trainer + number) for number in range(8)]
        self.losses: list[float] = []

    def step(self, number: int) -> None:
        """One step, as `fit` makes it."""
        self.losses.append(float(self._model.train_step(self._batches[number % len(self._batches)])["loss"]))
        self._model.reset_metrics()

    def telemetry(self) -> dict[str, Any]:
        return self._model.telemetry()

    def check(self, grid: hvd.pipeline.Grid) -> None:
        """The loss falls, and trainers have the same weights."""
        if not np.mean(self.losses[-5:]) < np.mean(self.losses[:5]):
            raise AssertionError(f"The loss does not fall: {self.losses}")
        own = zlib.crc32(b"".join(each.numpy().tobytes() for each in self._model.weights))
        told = hvd.topology.world().gather_descriptions(own, "weights")
        for stage in range(grid.stages):
            if len({told[rank] for rank in grid.ranks_of_stage(stage)}) > 1:
                raise AssertionError(f"Trainers differ in stage {stage}: {told}")


def run_arm(trained: Trained, steps: int, clock: Clock, idle: float) -> dict[str, Any]:
    """Seconds, bytes by the interface and by kind, and processor time of some steps."""
    clock.meet()
    told, processor, before = trained.telemetry(), time.process_time(), sent_bytes()
    began = time.monotonic()
    for number in range(steps):
        trained.step(number)
    seconds = time.monotonic() - began
    clock.meet()
    counted = sent_bytes() - before - idle * (time.monotonic() - began)
    after = trained.telemetry()
    split = sum(after[kind] - told[kind] for kind in ("activation_bytes", "gradient_bytes"))
    busy = time.process_time() - processor
    return {"steps": steps, "seconds": seconds, "counted": counted, "split": split, "processor": busy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    options = parser.parse_args()
    job = json.loads(options.job.read_text())
    tf.get_logger().setLevel("ERROR")
    grid = hvd.pipeline.Grid(job["trainers"], job["stages"])
    hvd.init(process_sets=grid.process_sets, local_size=1)
    clock = Clock()
    idle = idle_bytes_per_second(clock)[hvd.rank()]
    arms = {arm["name"]: Trained(arm, job, grid) for arm in job["rounds"][0]}
    for trained in arms.values():
        for number in range(WARM):
            trained.step(number)
    results = []
    for order in job["rounds"]:
        for arm in order:
            own = run_arm(arms[arm["name"]], job["steps"], clock, idle)
            results.append({"arm": arm["name"], "ranks": hvd.topology.world().gather_descriptions(own, "arm")})
    for trained in arms.values():
        trained.check(grid)
    if hvd.rank() == 0:
        write_json(options.results, results)


if __name__ == "__main__":
    main()
