"""How long a server takes to apply a push, against the passes over memory: python -m benchmarks.servers_apply RESULTS.

On as many threads as TF_NUM_INTRAOP_THREADS says. Adam reads parameters, gradient and two slots and writes all but the
gradient; the floor is a native pass that reads and writes as much and computes next to nothing. A push adds what it
holds to the sum of gradients, which is a vector of the same size, and takes it out again.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import threading
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from benchmarks import timing
from benchmarks.lars_arms import Floors
from hvd_sparse.servers.applying import ServedPieces
from hvd_sparse.servers.gathering import GradientSum
from hvd_sparse.servers.messages import Entries
from hvd_sparse.spec import Segment, Spec
from hvd_sparse.transport.communicator import Grid

FLOOR, DENSE, SPARSE = "passes", "apply", "apply a push of 1%"
_DENSITY = 0.01


def arms_of(size: int, threads: int) -> dict[str, Callable[[], object]]:
    """What is timed."""
    spec = Spec(size, Grid.lone(), segments=(Segment("weights", (size,)),))
    random = np.random.default_rng(0)
    served = ServedPieces(keras.optimizers.Adam(1e-3), [keras.Variable(np.zeros(size, np.float32))], spec)
    gradient = tf.constant(random.standard_normal(size, np.float32))
    places = np.sort(random.permutation(size)[: round(_DENSITY * size)]).astype(np.int32)
    pushed, gathered = Entries(random.standard_normal(len(places), np.float32), places), GradientSum(size)

    def push() -> None:
        gathered.add(pushed)
        served.apply(gathered.mean(), 1e-3)
        gathered.clear()

    return {FLOOR: _floor(size, threads), DENSE: lambda: served.apply(gradient, 1e-3), SPARSE: push}


def _floor(size: int, threads: int) -> Callable[[], object]:
    """Three vectors that a fourth is added to, each thread its part of them."""
    floors = [Floors(size // threads) for _ in range(threads)]  # they have the memory
    parts = [(floor, floor.passes("LAMB")["update"]) for floor in floors]

    def together() -> None:
        others = [threading.Thread(target=run) for _, run in parts[1:]]
        for other in others:
            other.start()
        parts[0][1]()
        for other in others:
            other.join()

    return together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--size", type=int, default=6_250_000)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    arms = arms_of(options.size, int(os.environ["TF_NUM_INTRAOP_THREADS"]))
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(-3, options.rounds):
        for name in timing.shuffled(arms, number):
            began = time.perf_counter()
            arms[name]()
            if number >= 0:
                seconds[name].append(time.perf_counter() - began)
    options.results.write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
