"""A collective in the background of a computation that takes as long (SparCML section 7), for rank.py.

The computation is a product of matrices on the cores that the collective needs as well, and, separately, a wait that
leaves them free, like the host's cores while a GPU computes. What stays exposed with the product but not with the wait
is the collective's own computation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.exchange.rank import Clock
from hvd_sparse import collectives

ARMS = ("computation", "collective", "one after the other", "overlapped", "wait", "overlapped with a wait")
_INNER = 1024  # rows and columns of the second matrix
_FIRST = 64  # rows of the first product that is timed
_REPEATS = 5
_CLOSE = 0.05  # maximum relative difference between the two times
_TRIES = 12


class Taken(NamedTuple):
    """The measurements.

    Attributes:
        seconds: this rank's seconds for each arm and round.
        matmul: sizes of the two matrices, [rows, inner, columns].
    """

    seconds: dict[str, list[float]]
    matmul: list[int]


def run_overlap(
    name: str,
    slices: tf.IndexedSlices,
    check: Callable[[str, Any], None],
    rounds: int,
    number: int,
    clock: Clock,
) -> Taken:
    """Times a collective, a computation and a wait of the same length, and the collective before and beside them.

    Args:
        name: name of the collective.
        slices: this rank's contribution.
        check: raises if a result is wrong.
        rounds: rounds of each arm, after two that do not count.
        number: number of this call, for the names of collectives.
        clock: synchronises all ranks.
    """
    world = hvd.topology.world()
    called: Callable[..., Any] = getattr(collectives, name)

    def collective() -> Any:
        return called(slices, world, name=f"overlap.{number}")

    left, right = matrices(collective, clock)
    pause = _slowest(clock, collective)

    def compute() -> None:
        tf.matmul(left, right)

    def wait() -> None:
        time.sleep(pause)

    def beside(work: Callable[[], None]) -> Any:
        handle = collectives.start(called, slices, world, name=f"overlap.{number}")
        work()
        return handle.wait()

    def in_order() -> Any:
        result = collective()
        compute()
        return result

    runs = (compute, collective, in_order, lambda: beside(compute), wait, lambda: beside(wait))
    arms: dict[str, Callable[[], Any]] = dict(zip(ARMS, runs, strict=True))
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for turn in range(-2, rounds):
        for arm, run in arms.items():
            result, taken = clock.time(run)
            if run not in (compute, wait):
                check(f"{name}, {arm}", result)
            if turn >= 0:
                seconds[arm].append(taken)
    return Taken(seconds, [left.shape[0], _INNER, _INNER])


def matrices(collective: Callable[[], Any], clock: Clock) -> tuple[tf.Tensor, tf.Tensor]:
    """Two matrices whose product takes as long as the collective on the slowest rank, if all ranks compute it.

    Both are timed again in each iteration: fewer rows take longer per row, and the first calls of a name are slow.
    """
    right = tf.ones([_INNER, _INNER])
    rows = _FIRST
    for _ in range(_TRIES):
        left = tf.ones([rows, _INNER])
        ratio = _slowest(clock, collective) / _slowest(clock, lambda left=left: tf.matmul(left, right))
        if abs(ratio - 1) < _CLOSE:
            break
        rows = max(1, round(rows * ratio))
    return left, right


def _slowest(clock: Clock, run: Callable[[], Any]) -> float:
    """The median over a few rounds of the slowest rank's seconds, after one round that does not count."""
    taken = []
    for _ in range(1 + _REPEATS):
        _, elapsed = clock.time(run)
        slowest = hvd.topology.world().allreduce(tf.constant(elapsed, tf.float64), "max", "overlap.slowest")
        taken.append(float(slowest))
    return float(np.median(taken[1:]))
