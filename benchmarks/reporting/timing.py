"""How arms are timed: all in turn, round after round, so that a drift of the machine's speed affects all arms alike."""

from __future__ import annotations

import dataclasses
import datetime
import math
import platform
import random
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from scipy.stats import binom


def _processor_times() -> np.ndarray:
    """Times of all cores together since the machine started, in the order of /proc/stat; the eighth is stolen time."""
    with open("/proc/stat") as file:
        return np.array(file.readline().split()[1:9], dtype=np.int64)


_AT_START = _processor_times()


@dataclasses.dataclass
class Arm:
    """Something to time.

    Attributes:
        run: the function to time.
        check: checks the results of the last `run`, not timed; raises if they are wrong.
        rounds: maximum number of rounds; slow rivals take part less often.
    """

    run: Callable[[], object]
    check: Callable[[], None] | None = None
    rounds: int = 1_000_000


@dataclasses.dataclass(frozen=True)
class Timing:
    """Milliseconds of one arm."""

    median: float
    p95: float
    rounds: int


def shuffled(names: Iterable[str], seed: int) -> list[str]:
    """Arms in the order of one round, the same on every rank.

    An arm that always follows the same other arm is affected by the state in which that one leaves the machine.
    """
    order = list(names)
    random.Random(seed).shuffle(order)
    return order


def interleave(arms: Mapping[str, Arm], rounds: int, before: Callable[[], object]) -> dict[str, Timing]:
    """Runs all arms in turn, `rounds` times after one warm-up; every result is checked.

    Args:
        arms: the arms by name.
        rounds: rounds of all arms that do not ask for fewer.
        before: runs before each arm, not timed, so that caches are in the same state for all.
    """
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(-1, rounds):
        for name, arm in arms.items():
            if number >= arm.rounds:
                continue
            before()
            start = time.perf_counter()
            arm.run()
            elapsed = time.perf_counter() - start
            if arm.check is not None:
                arm.check()
            if number >= 0:
                seconds[name].append(elapsed)
    return {
        name: Timing(1e3 * float(np.median(taken)), 1e3 * float(np.percentile(taken, 95)), len(taken))
        for name, taken in seconds.items()
    }


def paired_ratio(ones: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """The median of one / other, pair by pair, and its 95% interval.

    The interval is that of order statistics, without assumptions on the distribution: how many of n pairs lie below
    their median is binomial. With fewer than six pairs there is no such interval, and the whole real line is returned.

    Args:
        ones: figures of one arm.
        others: figures of the other arm, in the same rounds.

    Returns:
        The median, and the ends of the interval.
    """
    ratios = np.sort(np.asarray(ones, float) / np.asarray(others, float))
    outside = next((rank for rank in range(len(ratios)) if binom.cdf(rank, len(ratios), 0.5) > 0.025), 0)
    if outside == 0:
        return float(np.median(ratios)), -math.inf, math.inf
    return float(np.median(ratios)), float(ratios[outside - 1]), float(ratios[-outside])


def machine() -> dict[str, str]:
    """The conditions of the figures: processor, cores, versions, date.

    "stolen" is the share of the cores' time since this process began that the host gave to other machines: if it is not
    negligible, times are too long and ratios are noisy.
    """
    names = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    elapsed = _processor_times() - _AT_START
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {
        "date": datetime.date.today().isoformat(),
        "processor": f"{names[0]}, {len(names)} cores",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "commit": commit.stdout.strip() or "unknown",
        "stolen": f"{elapsed[-1] / max(1, elapsed.sum()):.1%}",
    }
