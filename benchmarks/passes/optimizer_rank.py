"""What each rank of bench_optimizer.py does: whole steps of Adam with each recipe, in turn.

A step starts with the gradients computed and updates the weights; for a recipe that looks ahead it also lowers and
restores the weights. The time of a round is the slowest rank's. After each round all ranks hold the same weights.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.reporting.timing import shuffled
from hvd_sparse import topology
from hvd_sparse.keras.exchanging import exchange_of
from hvd_sparse.optimizers import ahead

ALONE, DENSE, SPARSE, AGAIN = "Adam without an exchange", "torus2d", "hitopk", "hitopk, A/A"
MOMENTUM, UPDATES, AHEAD = "momentum_corrected(hitopk)", "updates(hitopk)", "updates(hitopk, ahead=True)"
GAIN_RATIO = "updates(hitopk, ahead=True, gain_ratio=True)"
ROWS = 1000  # of a variable, and its columns
WARM = 3  # rounds that do not count


def recipes(density: float) -> dict[str, Any]:
    """The timed recipes by name; None is no exchange."""
    sparse = hvd.recipes.hitopk(density)
    return {
        ALONE: None,
        DENSE: hvd.recipes.torus2d(),
        SPARSE: sparse,
        AGAIN: sparse,
        MOMENTUM: hvd.recipes.momentum_corrected(sparse),
        UPDATES: hvd.recipes.updates(sparse),
        AHEAD: hvd.recipes.updates(sparse, ahead=True),
        GAIN_RATIO: hvd.recipes.updates(sparse, ahead=True, gain_ratio=True),
    }


class Step:
    """One step of an optimizer, as a graph.

    Args:
        recipe: of the exchange, or None.
        variables: to be moved.
        gradients: of them, always the same.
    """

    def __init__(self, recipe: Any, variables: list[keras.Variable], gradients: list[tf.Tensor]):
        optimizer: Any = keras.optimizers.Adam(1e-4)
        self.optimizer = optimizer if recipe is None else hvd.DistributedOptimizer(optimizer, aggregator=recipe)
        self.optimizer.build(variables)

        def step() -> None:
            with hvd.looking_ahead(self.optimizer):
                given = [tf.identity(gradient) for gradient in gradients]
            self.optimizer.apply(given, variables)

        self.run = tf.function(step, autograph=False, jit_compile=False)

    def kept_bytes(self) -> int:
        """Bytes that optimizer and exchange keep on this rank; looking ahead needs twice the weights'."""
        kept = [each.value for each in self.optimizer.variables] + 2 * ahead.offsets(self.optimizer)
        exchange = exchange_of(self.optimizer)
        if exchange is not None:
            kept += [each for state in exchange.states for each in state.variables]
        return sum(each.dtype.size * each.shape.num_elements() for each in kept)


def measure(elements: int, density: float, rounds: int) -> dict[str, Any]:
    """Milliseconds of each round and bytes kept, by arm."""
    size = -(-elements // ROWS**2)
    random = np.random.default_rng(hvd.rank())
    gradients = [tf.constant(random.standard_normal((ROWS, ROWS), np.float32)) for _ in range(size)]
    variables = [keras.Variable(np.zeros((ROWS, ROWS), np.float32), name=f"kernel{number}") for number in range(size)]
    steps = {name: Step(recipe, variables, gradients) for name, recipe in recipes(density).items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(-WARM, rounds):
        for name in shuffled(steps, number):
            taken = _slowest(steps[name].run)
            if name == ALONE:  # moves each rank's weights by its own gradients
                hvd.broadcast_variables(variables, root_rank=0)
            _require_equal(name, variables)
            if number >= 0:
                times[name].append(taken)
    return {"times": times, "kept": {name: step.kept_bytes() for name, step in steps.items()}}


def _slowest(run: Callable[[], Any]) -> float:
    world = topology.world()
    world.allreduce(tf.constant(0), "max", "bench.begin")
    began = time.perf_counter()
    run()
    taken = tf.constant(1e3 * (time.perf_counter() - began), tf.float64)
    return float(world.allreduce(taken, "max", "bench.taken"))


def _require_equal(name: str, variables: list[keras.Variable]) -> None:
    sample = tf.stack([tf.reduce_sum(tf.bitcast(each.value[0], tf.int32)) for each in variables])
    low, high = (topology.world().allreduce(sample, op, f"bench.{op}").numpy() for op in ("min", "max"))
    if not np.array_equal(low, high):
        raise AssertionError(f"{name} leaves different weights on different ranks.")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=pathlib.Path, help="file in which the first rank writes the measurements")
    parser.add_argument("--local", type=int, default=2)
    parser.add_argument("--elements", type=int, default=25 * 10**6)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    tf.get_logger().setLevel("ERROR")
    hvd.init(local_size=options.local)
    measured = measure(options.elements, options.density, options.rounds)
    if hvd.rank() == 0:
        options.path.write_text(json.dumps(measured))
    hvd.shutdown()


if __name__ == "__main__":
    main()
