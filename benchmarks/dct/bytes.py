"""Bytes that cross the network, by the counters of the nodes' interfaces: `--questions bytes`.

Two nodes of one rank are network namespaces on unlimited links, so root is needed. A model of two dense layers is split
in the middle, at an activation of 4,000 elements, and trained with batches of 512. Counted are the bytes of both nodes
over some steps, less what Horovod sends in as much time while idle. Then the two ranks exchange a gradient of 4M
elements by `dct(0.995, life=1)`, which takes a new threshold in each step: a threshold that is held lets more or fewer
elements pass as time goes on. It takes a few minutes.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.exchange.rank import Clock, idle_bytes_per_second, sent_bytes, write_json
from benchmarks.machines.cluster import Cluster, unavailable
from benchmarks.reporting.report import Section, Verdict

TITLE = "Bytes on the network"
WIDTH, ROWS, STEPS = 4000, 512, 6
SIZE, SPARSITY = 4_000_000, 0.995
SPLITS = {"dense": (0.0, "float32"), "95%": (0.95, "float32"), "95%, float16": (0.95, "float16")}
GRADIENTS = {"99.5% of gradients": "float32", "99.5% of gradients, float16": "float16"}
WANTED = {"95%": 15.0, "95%, float16": 22.0, "99.5% of gradients": 90.0, "99.5% of gradients, float16": 120.0}
_LIMIT = 300.0


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Section:
    """Counts the bytes."""
    why = unavailable()
    if why:
        return Section(TITLE, [f"Not measured: {why}"], {}, [])
    say("two nodes")
    with tempfile.TemporaryDirectory() as name, Cluster(2, 1, None) as cluster:
        path = pathlib.Path(name) / "results.json"
        statuses = cluster.run([sys.executable, "-m", "benchmarks.dct.bytes", str(path)], {}, _LIMIT)
        if any(statuses):
            raise RuntimeError(f"the ranks ended with {statuses}")
        return told(json.loads(path.read_text()))


def told(counted: dict[str, dict[str, float]]) -> Section:
    """The table and the verdicts."""
    lines = ["| | KB a step | claimed | counted over claimed | times fewer than dense |", "|---|---|---|---|---|"]
    verdicts = []
    for name, each in counted.items():
        dense = counted["dense"]["counted"] if name in SPLITS else 4.0 * SIZE
        fewer, ratio = dense / each["counted"], each["counted"] / each["claimed"]
        kilobytes = f"{each['counted'] / 1e3:,.1f} | {each['claimed'] / 1e3:,.1f}"
        lines.append(f"| {name} | {kilobytes} | {ratio:.3f} | {fewer:.1f} |")
        verdicts.append(
            Verdict(f"bytes counted over claimed, {name}", "within 5%", f"{ratio:.3f}", abs(ratio - 1) < 0.05)
        )
        if name in WANTED:
            what = f"times fewer bytes than dense, {name}"
            verdicts.append(Verdict(what, f">= {WANTED[name]:g}", f"{fewer:.1f}", fewer >= WANTED[name]))
    return Section(TITLE, lines, counted, verdicts)


def of_splits(sparsity: float, wire: str, clock: Clock, idle: float) -> tuple[float, float]:
    """Bytes of this rank in a step, as counted and as its telemetry claims."""
    layers = keras.layers
    bottom = keras.Sequential([keras.Input((8,)), layers.Dense(WIDTH, "relu", name="bottom")])
    top = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(1, name="top")])
    model = hvd.pipeline.Stages([bottom, top], 1, sparsity=sparsity, wire_dtype=wire)
    model.compile(keras.optimizers.SGD(1e-4), "mse")
    random = np.random.default_rng(0)
    batch = (tf.constant(random.standard_normal((ROWS, 8), np.float32)), tf.zeros([ROWS, 1]))

    def claimed() -> int:
        told = model.telemetry()
        return told["activation_bytes"] + told["gradient_bytes"]

    model.train_step(batch)
    before = claimed()
    counted = _counted(lambda: model.train_step(batch), clock, idle)
    claim = (claimed() - before) / STEPS
    model.close()
    return counted, claim


def of_gradients(wire: str, clock: Clock, idle: float) -> tuple[float, float]:
    """The same for an exchange of gradients."""
    telemetry = hvd.Telemetry()
    exchange = hvd.GradientExchange(hvd.recipes.dct(SPARSITY, life=1, wire_dtype=wire), telemetry=telemetry)
    variable = keras.Variable(np.zeros(SIZE, np.float32), name="weights")
    random = np.random.default_rng(hvd.rank())
    gradient = tf.constant(random.standard_normal(SIZE, np.float32))
    run = tf.function(lambda: exchange([gradient], [variable]))
    run()
    before = telemetry.total_bytes_across
    counted = _counted(run, clock, idle)
    return counted, (telemetry.total_bytes_across - before) / STEPS


def _counted(run: Callable[[], Any], clock: Clock, idle: float) -> float:
    clock.meet()
    before, began = sent_bytes(), time.monotonic()
    for _ in range(STEPS):
        run()
    clock.meet()
    return (sent_bytes() - before - idle * (time.monotonic() - began)) / STEPS


def main() -> None:
    """Runs one rank."""
    hvd.init(local_size=1)
    clock = Clock()
    idle = idle_bytes_per_second(clock)[hvd.rank()]
    results = {}
    cases = {name: (of_splits, each) for name, each in SPLITS.items()}
    cases |= {name: (of_gradients, (each,)) for name, each in GRADIENTS.items()}
    for name, (count, words) in cases.items():
        told = hvd.topology.world().gather_descriptions(count(*words, clock, idle), "bytes")
        sums = np.sum(told, axis=0) if name in SPLITS else np.mean(told, axis=0)  # a push is one rank's
        results[name] = {"counted": float(sums[0]), "claimed": float(sums[1])}
    if hvd.rank() == 0:
        write_json(pathlib.Path(sys.argv[1]), results)


if __name__ == "__main__":
    main()
