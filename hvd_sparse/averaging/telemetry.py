"""How much averaging loses and how far models stray, round by round; only measured on request."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.averaging.transports import Averaged, Channel

_PHASES = ("reduce_scatter", "all_gather")


class Telemetry:
    """Measures the rounds of one optimizer; pass it as `telemetry=`.

    `read` returns for this rank:

    - round: the number of the last round, from 0.
    - lost: by phase (reduce_scatter, all_gather), the share of expected messages that did not arrive in the last round,
      in [0, 1].
    - total_lost: the same over all rounds.
    - lost_from: by phase, the same over all rounds for each sending rank, [P].
    - distance: between this rank's model and the mean before the round, including the steps since the previous round,
      estimated from the blocks that have arrived; infinite if none has.
    - resynchronisations: how often all ranks got the exact mean.
    - channel: what the transport reports in addition, see `DatagramsChannel.report`; {} if nothing.
    """

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._last: Any = None
        self._total: Any = None
        self._figures: Any = None

    def create(self, ranks: int, channel: Channel) -> None:
        """Creates the variables that hold the figures, and keeps the channel that averages."""
        self._channel = channel
        with tf.device("CPU:0"):
            zeros = tf.zeros([2, 2, ranks], tf.int64)
            self._last = tf.Variable(zeros, trainable=False, name="averaging_last")
            self._total = tf.Variable(zeros, trainable=False, name="averaging_total")
            self._figures = tf.Variable(tf.constant([-1.0, 0.0, 0.0], tf.float64), trainable=False, name="averaging")

    def record(self, averaged: Averaged, distance: tf.Tensor, resynchronised: tf.Tensor) -> None:
        """Records the figures of a round.

        Args:
            averaged: the result of the round.
            distance: [] float32.
            resynchronised: [] bool.
        """
        counts = tf.stack([averaged.expected, averaged.arrived])
        self._last.assign(counts)
        self._total.assign_add(counts)
        times = self._figures.read_value()[2] + tf.cast(resynchronised, tf.float64)
        self._figures.assign(tf.stack([tf.cast(averaged.round, tf.float64), tf.cast(distance, tf.float64), times]))

    def count_resynchronisation(self) -> None:
        """Counts a resynchronisation that was asked for between two rounds."""
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

    The rank knows the mean of the blocks that it has received, and of its own block if another rank's vector has
    reached it: sqrt(the sum of ||v^b - mean^b||^2 over these / their share). The distance is infinite if nothing has
    arrived.

    Args:
        before: [d] float32, the rank's vector as it was sent.
        averaged: the result of the round.
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
    """The share that was lost, by phase, from counts [expected and arrived, phase, ...]; 0 if nothing was expected."""
    expected, arrived = counts
    lost = (expected - arrived) / np.maximum(expected, 1)
    return dict(zip(_PHASES, lost.tolist(), strict=True))
