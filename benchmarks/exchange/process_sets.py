"""What Horovod's process sets add to each of its calls: ranks start with those of the grid, or with none.

    alias box='python -m benchmarks.machines.cluster --nodes 2 --local 2 --rate 10gbit --'
    box python -m benchmarks.exchange.process_sets --plain
    box python -m benchmarks.exchange.process_sets

Prints the median milliseconds, on the slowest rank, of Horovod's all-reduce of a million elements and of ten. Each
launch is one sample: take several of both kinds, in turn.
"""

from __future__ import annotations

import argparse
import time

import horovod.tensorflow as horovod
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd

ROUNDS, WARM = 100, 10
SIZES = (10**6, 10)


def timed(call, gradient: tf.Tensor) -> float:
    """Seconds of one call from when all ranks are ready, the slowest rank's."""
    horovod.allgather(tf.constant([0]), name="meet").numpy()
    start = time.perf_counter()
    call(gradient)
    own = time.perf_counter() - start
    return float(np.max(horovod.allgather(tf.constant([own], tf.float64), name="seconds").numpy()))


def all_reduce(size: int):
    """Horovod's all-reduce of so many elements, as a graph."""
    return tf.function(lambda gradient: horovod.allreduce(gradient, name=f"sum.{size}"), jit_compile=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="start Horovod only, without the process sets of the grid")
    plain = parser.parse_args().plain
    (horovod if plain else hvd).init()
    calls = {size: (all_reduce(size), tf.random.normal([size])) for size in SIZES}
    seconds: dict[int, list[float]] = {size: [] for size in SIZES}
    for number in range(-WARM, ROUNDS):
        for size, (call, gradient) in calls.items():
            taken = timed(call, gradient)
            if number >= 0:
                seconds[size].append(taken)
    if horovod.rank() == 0:
        medians = ", ".join(f"{size:,} elements {1e3 * np.median(each):.1f} ms" for size, each in seconds.items())
        print(f"{'Horovod alone' if plain else 'with the sets of the grid'}: {medians}", flush=True)


if __name__ == "__main__":
    main()
