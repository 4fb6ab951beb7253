"""What one rank does for bench_servers.py: python -m benchmarks.servers.rank JOB RESULTS.

JOB is a JSON file: {"size": d, "rounds": [[arm, ...], ...]}, with arms as `bench_servers.Arm`. Rank 0 writes RESULTS:
for each arm of each round what every rank did. After each arm all ranks compare their final parameters. What Horovod
sends while idle is measured beforehand, and is not counted.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.exchange.rank import Clock, idle_bytes_per_second, job_and_results, sent_bytes, write_json
from benchmarks.servers.model import RATE, START, layers_of

WARM = 3  # steps that do not count
_SOON = 0.3  # seconds until all begin, for those that hear of it last


class Trained:
    """A model of one arm with prepared gradients, and its optimizer."""

    def __init__(self, arm: dict, size: int):
        shapes, random = layers_of(size), np.random.default_rng(hvd.rank())
        self._gradients = [tf.constant(random.standard_normal(shape, np.float32)) for shape in shapes]
        self.variables = [keras.Variable(np.full(shape, START, np.float32), name="weights") for shape in shapes]
        dropping = None if arm["density"] is None else hvd.compressors.SampledThreshold(arm["density"])
        self.optimizer = hvd.servers.ShardedServers(
            keras.optimizers.Adam(RATE), push=dropping, pull=dropping, synchronous=arm["synchronous"]
        )
        self.optimizer.build(self.variables)
        self._step = tf.function(self._apply, autograph=False, jit_compile=False)

    def step(self) -> None:
        """Pushes a gradient and pulls parameters."""
        self._step(self._gradients)

    def check(self) -> int:
        """Stops the servers; returns the parameters' checksum, after checking that they are finite and have changed."""
        hvd.servers.finish(self.optimizer)
        values = [variable.numpy() for variable in self.variables]
        if not all((value != np.float32(START)).any() for value in values):
            raise AssertionError("The parameters have not changed.")
        return checksum(values)

    def _apply(self, gradients):
        self.optimizer.apply(gradients, self.variables)


def checksum(values: Sequence[np.ndarray]) -> int:
    """A checksum of parameters; AssertionError if they are not finite."""
    if not all(np.isfinite(value).all() for value in values):
        raise AssertionError("The parameters are not finite.")
    return zlib.crc32(b"".join(value.tobytes() for value in values))


def begin_together() -> float:
    """Waits until all ranks begin; returns the time, by the clock of all nodes of this machine."""
    told = hvd.topology.world().gather_descriptions(time.monotonic() + _SOON, "begin")
    time.sleep(max(0.0, told[0] - time.monotonic()))
    return time.monotonic()


def stepped(trained: Trained, arm: dict) -> tuple[float, list[float]]:
    """Waits for the computation and steps, for a time or a number of steps; returns its begin and each step's end."""
    wait = arm["wait"] * (arm["slower"] if hvd.rank() == hvd.size() - 1 else 1)
    began = begin_together()
    ended: list[float] = []
    while len(ended) < arm["steps"] if arm["synchronous"] else time.monotonic() < began + arm["seconds"]:
        time.sleep(wait)
        trained.step()
        ended.append(time.monotonic())
    return began, ended


def run_arm(arm: dict, size: int, clock: Clock, idle: float) -> dict[str, Any]:
    """This rank's results in an arm: steps, seconds, bytes of its interface and its telemetry, processor time."""
    trained = Trained(arm, size)
    for _ in range(WARM):
        trained.step()
    clock.meet()
    told, processor = trained.optimizer.servers.telemetry(), time.process_time()
    before, since = sent_bytes(), time.monotonic()
    began, ended = stepped(trained, arm)
    clock.meet()
    after, processor = trained.optimizer.servers.telemetry(), time.process_time() - processor
    counted = sent_bytes() - before - idle * (time.monotonic() - since)
    sums = hvd.topology.world().gather_descriptions(trained.check(), "parameters")
    if len(set(sums)) != 1:
        raise AssertionError(f"{arm['name']}: the ranks end with different parameters")
    return {
        "steps": len(ended),
        "seconds": ended[-1] - began,
        "counted": counted,
        "claimed": sum(after[way] - told[way] for way in ("bytes_pushed", "bytes_pulled")),
        "processor": processor,
        "staleness": max(after["staleness"], default=0),
    }


def main() -> None:
    job, path = job_and_results(__doc__)
    tf.get_logger().setLevel("ERROR")  # every arm traces its step anew, as it should
    hvd.init(local_size=1)
    clock, results = Clock(), []
    idle = idle_bytes_per_second(clock)[hvd.rank()]
    for arms in job["rounds"]:
        for arm in arms:
            everyones = hvd.topology.world().gather_descriptions(run_arm(arm, job["size"], clock, idle), "arm")
            results.append({"arm": arm["name"], "ranks": everyones})
    if hvd.rank() == 0:
        write_json(path, results)


if __name__ == "__main__":
    main()
