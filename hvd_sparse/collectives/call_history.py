"""The history of `auto`: what it knows of former calls of a name."""

from __future__ import annotations

import collections
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse.costs.collectives import CANDIDATES

_JUDGED, _REMEMBERED = 2, 4  # calls of a candidate after which it is judged, and those that count


class Calls(NamedTuple):
    """What is known of former calls.

    Attributes:
        calls: how many there were.
        spread: `universe / kept` of the last one that told, or 0.
        choice: what the last one took.
    """

    calls: float = 0.0
    spread: float = 0.0
    choice: float = 0.0


class CallHistory:
    """What is known of former calls, in a variable [3] where a graph changes it, too, and of eager ones their times.

    Attributes:
        timings: the times.
        along: rows up to which a rank's message goes along with the next call's greeting.
    """

    def __init__(self) -> None:
        self.timings = CallTimings()
        self.along = -1
        self._own = Calls()  # until there is a variable
        self._shared: tf.Variable | None = None  # half a millisecond of an eager call

    def read(self) -> Calls:
        """Of eager code and graphs together; in eager code."""
        return self._own if self._shared is None else Calls(*self._shared.numpy().tolist())

    def write(self, calls: Calls) -> None:
        """Takes in another call; in eager code."""
        if self._shared is None:
            self._own = calls
        else:
            self._shared.assign(calls)

    def variable(self) -> tf.Variable:
        """For graphs: the three numbers [3], which eager calls read and change from now on."""
        if self._shared is None:
            with tf.init_scope():
                self._shared = tf.Variable(self._own, trainable=False, dtype=tf.float64, name="auto_history")
        return self._shared

    def told(self) -> tuple[int, int]:
        """What this rank tells all others in the next call, and the rows up to which its message goes along."""
        return self.timings.told(), self.along


class CallTimings:
    """How long calls took against what was expected, the same on every rank; what `elapsed` says is of this rank.

    A first call is cold, so that a candidate is judged by the shorter of at least two.
    """

    def __init__(self) -> None:
        self.elapsed = 0.0  # seconds of the last call
        self._last: tuple[int, float] | None = None
        self._ratios: list[collections.deque[float]] = [collections.deque(maxlen=_REMEMBERED) for _ in CANDIDATES]

    def told(self) -> int:
        """Microseconds of this rank's last call, 0 where there was none."""
        return min(round(1e6 * self.elapsed), 2**31 - 1)

    def learn(self, told: np.ndarray) -> None:
        """Takes in what all ranks told."""
        if self._last is not None and told.min() > 0:
            choice, expected = self._last
            self._ratios[choice].append(1e-6 * float(told.max()) / expected)

    def factors(self) -> list[float]:
        """By which expected times are to be multiplied."""
        return [min(ratios) if self.judged(choice) else 1.0 for choice, ratios in enumerate(self._ratios)]

    def judged(self, choice: int) -> bool:
        """Whether a candidate was timed often enough."""
        return len(self._ratios[choice]) >= _JUDGED

    def begin(self, choice: int, expected: float) -> None:
        """A call begins."""
        self._last, self.elapsed = (choice, expected), 0.0
