"""What averaging loses and how far models stray, round by round; nothing is measured unless it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.averaging.transports import Averaged, Channel

_PHASES = ("reduce_scatter", "all_gather")


class Telemetry:
    """Measures the rounds of one optimizer; pass it as `telemetry=`.

    `read` gives of this rank:

    - round: the number of the last one, from 0.
    - lost: by phase (reduce_scatter, all_gather), what did not come of what was to come in the last round, in [0, 1].
    - total_lost: the same of all rounds.
    - lost_from: by phase, the same of all rounds for each rank that was to send, [P].
    - distance: between this rank's model and the mean before the round, steps since the one before included, estimated
      from the blocks that have arrived; infinite where none has.
    - resynchronisations: how often all ranks got the exact mean.
    - channel: what the transport tells beside, see `DatagramsChannel.report`; {} where that is nothing.
    """

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._last: Any = None
        self._total: Any = None
        self._figures: Any = None

    def create(self, ranks: int, channel: Channel) -> None:
        """Makes the variables that hold the figures, and takes what is averaged by."""
        self._channel = channel
        with tf.device("CPU:0"):
            zeros = tf.zeros([2, 2, ranks], tf.int64)
            self._last = tf.Variable(zeros, trainable=False, name="averaging_last")
            self._total = tf.Variable(zeros, trainable=False, name="averaging_total")
            self._figures = tf.Variable(tf.constant([-1.0, 0.0, 0.0], tf.float64), trainable=False, name="averaging")

    def record(self, averaged: Averaged, distance: tf.Tensor, resynchronised: tf.Tensor) -> None:
        """Writes the figures of a round.

        Args:
            averaged: what came of it.
            distance: [] float32.
            resynchronised: [] bool.
        """
        counts = tf.stack([averaged.expected, averaged.arrived])
        self._last.assign(counts)
        self._total.assign_add(counts)
        times = self._figures.read_value()[2] + tf.cast(resynchronised, tf.float64)
        self._figures.assign(tf.stack([tf.cast(averaged.round, tf.float64), tf.cast(distance, tf.float64), times]))

    def count_resynchronisation(self) -> None:
        """Counts one that was asked for between two rounds."""
        self._figures.assign_add(tf.constant([0.0, 0.0, 1.0], tf.float64))

    def read(self) -> dict[str, Any]:
        """The figures, see the class; {} before the first round."""
        if self._figures is None or self._figures[0] < 0:
            return {}
        round, distance, times = self._figures.numpy().tolist()
        last, total = self._last.numpy(), self._total.numpy()
        return {
            "round": int(round),
            "lost": _by_phase(last.sum(axis=-1)),
            "total_lost": _by_phase(total.sum(axis=-1)),
            "lost_from": _by_phase(total),
            "distance": distance,
            "resynchronisations": int(times),
            "channel": {} if self._channel is None else self._channel.report(),
        }


def distance(before: tf.Tensor, averaged: Averaged) -> tf.Tensor:
    """The Euclidean distance between a rank's model and the mean, [] float32, as far as the rank can tell.

    Of the blocks that it has received it knows the mean, and of its own block where another's vector has reached it:
    sqrt(the sum of ||v^b - mean^b||^2 over these / their share). It is infinite where nothing has arrived at all.

    Args:
        before: [d] float32, the rank's vector as it was sent.
        averaged: what came of it.
    """
    ranks = averaged.expected.shape[1]
    if ranks == 1:
        return tf.constant(0.0)
    nothing_lost = tf.reduce_all(averaged.arrived == averaged.expected)
    of_others = _share(averaged.arrived[1], averaged.expected[1])
    of_own = tf.cast(tf.reduce_any(averaged.arrived[0] > 0), tf.float32)
    share = tf.where(nothing_lost, 1.0, (of_own + (ranks - 1) * of_others) / ranks)
    square = tf.reduce_sum(tf.square(averaged.vector - before))
    return tf.where(share > 0.0, tf.sqrt(tf.math.divide_no_nan(square, share)), float("inf"))


def _share(arrived: tf.Tensor, expected: tf.Tensor) -> tf.Tensor:
    sums = (tf.cast(tf.reduce_sum(pieces), tf.float32) for pieces in (arrived, expected))
    return tf.math.divide_no_nan(*sums)


def _by_phase(counts: np.ndarray) -> dict[str, Any]:
    """What was lost of [expected and arrived, phase, ...], by phase; 0 where nothing was to come."""
    expected, arrived = counts
    lost = (expected - arrived) / np.maximum(expected, 1)
    return dict(zip(_PHASES, lost.tolist(), strict=True))
