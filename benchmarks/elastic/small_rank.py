"""A rank that times small all-reduces, in an elastic job or in one with fixed ranks.

python -m benchmarks.elastic.small_rank FOLDER --calls 500
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time
from collections.abc import Callable

import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.elastic.small import FLOATS
from benchmarks.machines.loopback_job import Log

WARM = 50  # calls before those that are timed


def summed(floats: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """An all-reduce of so many floats, as a graph."""
    return tf.function(lambda own: hvd.allreduce(own, op=hvd.Sum, name=f"small.{floats}"))


def medians(calls: int) -> dict[str, float]:
    """Milliseconds of a call by the number of floats; sizes in turn.

    Raises:
        ValueError: if a sum is wrong.
    """
    graphs = {floats: (summed(floats), tf.ones([floats])) for floats in FLOATS}
    seconds: dict[int, list[float]] = {floats: [] for floats in FLOATS}
    for _ in range(WARM + calls):
        for floats, (graph, own) in graphs.items():
            begun = time.perf_counter()
            total = graph(own).numpy()
            seconds[floats].append(time.perf_counter() - begun)
            if (total != hvd.size()).any():
                raise ValueError(f"Expected the sum {hvd.size()}, got {total}.")
    return {str(floats): 1e3 * statistics.median(each[WARM:]) for floats, each in seconds.items()}


@hvd.elastic.run
def measure(state: hvd.elastic.ObjectState, calls: int, log: Log) -> None:
    """Writes down what this rank has measured."""
    log(event="measured", rank=hvd.rank(), size=hvd.size(), milliseconds=medians(calls))


def main() -> None:
    """Runs the rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--calls", type=int, required=True)
    options = parser.parse_args()
    hvd.init()
    measure(hvd.elastic.ObjectState(), options.calls, Log(options.folder))


if __name__ == "__main__":
    main()
