"""Times calls that all ranks make: the slowest rank's time counts, and every rank gets the same figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse.costs import Link
from hvd_sparse.transport.communicator import Communicator

_COLD, _REPEATS = 3, 5  # an operation that keeps its outputs has allocated them after three rounds


class Sizes(NamedTuple):
    """The message sizes that separate latency from bandwidth.

    Attributes:
        smallest: number of elements.
        largest: number of elements.
        step: factor by which they grow.
        long: seconds after which nothing larger is sent: bandwidth then clearly dominates latency.
    """

    smallest: int
    largest: int
    step: int
    long: float


def slowest(world: Communicator, run: Callable[[], Any], name: str) -> float:
    """Seconds that a call takes on the slowest rank, from when all ranks have arrived; the same on every rank.

    Args:
        world: the ranks that make the call.
        run: makes it, and returns when it is done.
        name: the same on every rank; collectives are named after it.
    """
    world.allreduce(tf.constant(0), "max", f"{name}.meet")
    start = time.perf_counter()
    run()
    elapsed = tf.constant(time.perf_counter() - start, tf.float64)
    return float(world.allreduce(elapsed, "max", f"{name}.slowest"))


def median_seconds(world: Communicator, run: Callable[[], Any], name: str) -> float:
    """The median of a few rounds of `slowest`, after some warm-up rounds; same arguments."""
    taken = [slowest(world, run, name) for _ in range(_COLD + _REPEATS)]
    return float(np.median(taken[_COLD:]))


def medians(rounds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each series, by name."""
    return {name: float(np.median(taken)) for name, taken in rounds.items()}


def fit_link(seconds: Callable[[int], float], sizes: Sizes, element: int) -> Link:
    """Latency and bandwidth of a call, from the smallest size and the first that takes long.

    Args:
        seconds: returns the time of a call that sends this many elements; a collective, the same on every rank.
        sizes: of the calls.
        element: bytes sent one after another for each element.
    """
    each = sizes.smallest
    small = large = seconds(each)
    while large < sizes.long and each < sizes.largest:
        each *= sizes.step
        large = seconds(each)
    if each == sizes.smallest:  # so slow that latency makes no difference
        return Link(0.0, element * each / small)
    per_byte = max(large - small, 1e-9) / (element * (each - sizes.smallest))
    return Link(max(0.0, small - element * sizes.smallest * per_byte), 1 / per_byte)
