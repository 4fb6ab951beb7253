"""TensorFlow's ParameterServerStrategy for bench_servers.py: python -m benchmarks.servers.strategy JOB RESULTS.

Each node has a worker and a parameter server; the first one also has the coordinator. The model is that of
rank.py, as plain variables, two matrices on each server together with Adam's slots. A step waits as long as
ours does, reads all variables, and applies Adam on the servers. JOB is a JSON file: {"size": d, "addresses": [...],
"wait": seconds, "steps": in all, "rounds": r}; RESULTS has the updates per second of each round.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time
from typing import Any

import tensorflow as tf

from benchmarks.servers.model import RATE, START, layers_of

_PORTS = {"chief": 21000, "worker": 22000, "ps": 23000}
_WARM = 16  # steps
_POLL = 0.2


class Parameters:
    """A matrix, with Adam's slots, on one server."""

    def __init__(self, value: tf.Variable, first: tf.Variable, second: tf.Variable):
        self._value, self._first, self._second = value, first, second
        self._gain = 1e-6

    def step(self) -> None:
        """Reads the matrix, and applies a gradient that depends on it."""
        gradient = 0.01 + self._gain * self._value.read_value()
        with tf.device(self._value.device):
            tf.raw_ops.ResourceApplyAdam(
                var=self._value.handle,
                m=self._first.handle,
                v=self._second.handle,
                beta1_power=0.9,
                beta2_power=0.999,
                lr=RATE,
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-7,
                grad=gradient,
                use_locking=True,
            )

    def has_moved(self) -> bool:
        """Whether all elements are finite and have changed."""
        value = self._value.numpy()
        return bool((abs(value) < 1e30).all() and (value != START).all())


def wait(seconds: float) -> tf.Operation:
    """A wait that leaves the core free, as an operation of the worker: Python does not run there."""
    numbers = tf.raw_ops.RangeDataset(
        start=tf.constant(0, tf.int64),
        stop=tf.constant(1, tf.int64),
        step=tf.constant(1, tf.int64),
        output_types=[tf.int64],
        output_shapes=[[]],
    )
    slept = tf.raw_ops.SleepDataset(
        input_dataset=numbers,
        sleep_microseconds=tf.constant(round(1e6 * seconds), tf.int64),
        output_types=[tf.int64],
        output_shapes=[[]],
    )
    return tf.raw_ops.DatasetToSingleElement(dataset=slept, output_types=[tf.int64], output_shapes=[[]])[0].op


def coordinate(job: dict, cluster: tf.train.ClusterSpec) -> list[float]:
    """Runs training on the workers; returns the updates per second of each round."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():  # places variables in turn; there are as many matrices as servers, or twice as many
        made = [[tf.Variable(tf.fill(shape, start)) for shape in layers_of(job["size"])] for start in (START, 0.0, 0.0)]
        model = [Parameters(*each) for each in zip(*made, strict=True)]

    @tf.function(autograph=False)
    def step():
        with tf.control_dependencies([wait(job["wait"])]):
            for each in model:
                each.step()

    def updates_a_second(steps: int) -> float:
        began = time.monotonic()
        for _ in range(steps):
            coordinator.schedule(step)
        coordinator.join()
        return steps / (time.monotonic() - began)

    updates_a_second(_WARM)
    measured = [updates_a_second(job["steps"]) for _ in range(job["rounds"])]
    if not all(each.has_moved() for each in model):
        raise AssertionError("The parameters are not finite, or have not changed.")
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    options = parser.parse_args()
    job: dict[str, Any] = json.loads(options.job.read_text())
    rank = int(os.environ["HOROVOD_RANK"])
    kinds = {"worker": job["addresses"], "ps": job["addresses"], "chief": job["addresses"][:1]}
    cluster = tf.train.ClusterSpec(
        {kind: [f"{address}:{_PORTS[kind]}" for address in addresses] for kind, addresses in kinds.items()}
    )
    servers = [
        tf.distribute.Server(cluster, job_name=kind, task_index=rank, protocol="grpc", start=True)
        for kind in ("worker", "ps")
    ]
    if rank == 0:
        part = options.results.with_suffix(".part")
        part.write_text(json.dumps(coordinate(job, cluster)))
        part.replace(options.results)
    while not options.results.exists():
        time.sleep(_POLL)
    assert servers
    os._exit(0)  # TensorFlow's servers cannot be stopped


if __name__ == "__main__":
    main()
