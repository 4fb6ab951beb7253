"""One rank of bench_lars.py: trust ratios alone and shared, and whole steps with and without a choice.

Elapsed time of a round is that of the slowest rank; processor time is a rank's own, over all of its threads, including
those of Horovod and of the exchange.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.passes.lars_arms import (
    ALONE,
    CHOSEN,
    HOROVOD,
    SHARED,
    UNSHARED,
    UNSHARED_AGAIN,
    Tensors,
    elements_of,
    gradients_of,
    layers_of,
    our_optimizer,
    our_ratios,
    our_step,
)
from benchmarks.reporting.timing import shuffled
from hvd_sparse import topology

SLOTS = {"LARS": 0, "LAMB": 2}  # number of slots from which the ratios are computed
SECONDS = 0.15  # duration of an arm's calls in one round, long enough to measure processor time
# Steps of 2 ms on two ranks that share the host's cores vary by a tenth between rounds, and 2% must be visible.
MORE_ROUNDS = {"small": 8}


def measure(rounds: int, models: list[str]) -> list[dict[str, Any]]:
    """The results of all cells; the same on every rank."""
    cells = []
    for model in models:
        layers = layers_of(model)
        for name in SLOTS:
            cell = {"model": model, "optimizer": name, "elements": elements_of(layers)}
            gradients = gradients_of(layers)
            cell["ratios"] = _timed(_ratio_arms(name, Tensors(layers, SLOTS[name]), gradients), rounds)
            chosen = our_optimizer(name, parallel=True)
            steps = _step_arms(name, layers, gradients, chosen)
            cell["steps"] = _timed(steps, rounds * MORE_ROUNDS.get(model, 1))
            assert chosen.choice is not None
            cells.append(cell | {"way": chosen.choice.way, "choice": str(chosen.choice)})
    return cells


def _ratio_arms(name: str, tensors: Tensors, gradients: list[tf.Tensor]) -> dict[str, Callable[[], Any]]:
    arms = {
        arm: tf.function(lambda communicator=communicator: our_ratios(name, tensors, gradients, communicator))
        for arm, communicator in ((ALONE, None), (SHARED, topology.node()), (HOROVOD, topology.world()))
    }
    alone = arms[ALONE]().numpy().tobytes()
    for arm, run in arms.items():
        assert run().numpy().tobytes() == alone, f"{arm} is not bit for bit equal to {ALONE}"
    return arms


def _step_arms(name: str, layers: list, gradients: list[tf.Tensor], chosen: Any) -> dict[str, Callable[[], Any]]:
    plain, other = Tensors(layers), Tensors(layers)
    step = our_step(our_optimizer(name), plain, gradients)
    choosing = our_step(chosen, other, gradients)
    for run in (step, choosing):
        run()
    for first, second in zip(plain.weights, other.weights, strict=True):
        assert first.numpy().tobytes() == second.numpy().tobytes(), "a step with shared norms gives different bits"
    return {UNSHARED: step, CHOSEN: choosing, UNSHARED_AGAIN: step}


def _timed(arms: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """For each arm and round: the slowest rank's elapsed and the busiest rank's processor milliseconds per call."""
    world = topology.world()
    times: dict[str, list[list[float]]] = {arm: [] for arm in arms}
    calls = {arm: _calls(run) for arm, run in arms.items()}
    for number in range(rounds):
        for arm in shuffled(arms, number):
            run = arms[arm]
            world.allreduce(tf.constant(0), "max", "bench.begin")
            elapsed, busy = time.perf_counter(), time.process_time()
            for _ in range(calls[arm]):
                run()
            taken = [time.perf_counter() - elapsed, time.process_time() - busy]
            worst = world.allreduce(tf.constant(taken, tf.float64), "max", "bench.taken").numpy()
            times[arm].append((1e3 * worst / calls[arm]).tolist())
    return {
        arm: {"elapsed": [row[0] for row in rows], "processor": [row[1] for row in rows]} for arm, rows in times.items()
    }


def _calls(run: Callable[[], Any]) -> int:
    """The number of calls in a round; the same on every rank."""
    run()
    began = time.perf_counter()
    run()
    longest = topology.world().allreduce(tf.constant(time.perf_counter() - began, tf.float64), "max", "bench.calls")
    return int(np.clip(SECONDS / float(longest), 1, 200))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=pathlib.Path, help="file in which the first rank writes the measurements")
    parser.add_argument("--models", default="resnet50,transformer,small")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    hvd.init()
    cells = measure(options.rounds, options.models.split(","))
    if hvd.rank() == 0:
        options.path.write_text(json.dumps(cells))
    hvd.shutdown()


if __name__ == "__main__":
    main()
