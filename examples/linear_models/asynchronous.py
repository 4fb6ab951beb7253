"""Stochastic gradient descent without waiting: sharded servers apply each gradient as it arrives (MPI-OPT, 8.2).

A rank computes with weights that others may have changed since, and each of its batches makes a separate update.
Gradients are sent as they are, sparse; a rank gets back the weights that have changed most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from examples.linear_models.data import Data
from examples.linear_models.losses import Loss
from examples.linear_models.sgd import SCHEDULES, compact, safe_learning_rate
from hvd_sparse import ops
from hvd_sparse.compression.base import Compressor, Selection
from hvd_sparse.compression.selection import or_zeros, slices_of
from hvd_sparse.transport.communicator import Communicator


@dataclasses.dataclass(frozen=True)
class NonZeros(Compressor):
    """Selects all nonzeros: nothing is left out."""

    wire_dtype: str = "float32"
    counts_differ = True

    def create(self, spec):
        return tf.Module()

    def count(self, size):
        return None

    def at_density(self, density):
        return self

    def compress(self, parts, state, residual=None):
        total, culprit = ops.sum_parts(parts)
        total += or_zeros(residual, parts)
        there = tf.cast(tf.where(total != 0.0)[:, 0], tf.int32)
        size = int(parts.shape[1])
        return Selection(slices_of(tf.gather(total, there), there, size), tf.zeros_like(total), culprit)


class AsynchronousDescent:
    """SGD on sharded servers; every rank makes it with the same arguments, but with its own samples.

    Args:
        communicator: the ranks.
        given: the samples.
        loss: the loss; the objective is its mean over all samples plus l2 / 2 |weights|^2.
        l2: strength of the regularisation.
        batch: samples per step of one rank.
        density: share of the weights that a rank gets back in each step.
        learning_rate: initial learning rate; None for `safe_learning_rate`.
        schedule: one of SCHEDULES.
        decay: decay of the schedule, per pass.
        seed: seed of the order of the samples.

    Attributes:
        seconds: seconds spent waiting for servers.
        waiting: seconds that ranks took to meet; always 0.
        count: steps so far.
        sent: entries that this rank has sent.
        received: weights that it has received.
    """

    waiting = 0.0

    def __init__(
        self,
        communicator: Communicator,
        given: Data,
        loss: Loss,
        l2: float,
        batch: int = 1_000,
        density: float = 0.01,
        learning_rate: float | None = None,
        schedule: str = "constant",
        decay: float = 1.0,
        seed: int = 0,
    ):
        self._communicator, self._data, self._loss = communicator, given, loss
        self._batch, self._schedule, self._decay, self._seed = batch, SCHEDULES[schedule], decay, seed
        self._rate = safe_learning_rate(communicator, given, loss, l2) if learning_rate is None else learning_rate
        self._columns, self._matrix = compact(given)
        self._weights = keras.Variable(np.zeros(given.features, np.float32), name="weights")
        self._intercept = keras.Variable(np.zeros(1, np.float32), name="intercept")
        descent = keras.optimizers.SGD(self._rate, weight_decay=l2)
        descent.exclude_from_weight_decay([self._intercept])
        pull = hvd.compressors.SampledThreshold(density)
        self._optimizer = hvd.servers.ShardedServers(descent, push=NonZeros(), pull=pull)
        self._optimizer.build([self._weights, self._intercept])
        self.steps = -(-len(given.train.labels) // batch)

    @property
    def settings(self) -> dict[str, float]:
        """The settings to report with a run."""
        return {"learning_rate": self._rate, "batch": self._batch, "steps": self.steps}

    @property
    def seconds(self) -> float:
        """See above."""
        return self._servers.seconds_waiting

    @property
    def count(self) -> int:
        """See above."""
        return self._servers.number

    @property
    def sent(self) -> int:
        """See above."""
        return self._servers.sent.values

    @property
    def received(self) -> int:
        """See above."""
        return self._servers.received.values

    @property
    def _servers(self):
        return self._optimizer.servers.connections

    def weights(self) -> np.ndarray:
        """All weights, the intercept last, with the updates of all ranks; a collective."""
        self._servers.pause()
        self._communicator.gather_descriptions(None, "linear.paused")
        return self._servers.published().astype(np.float64)

    def training_scores(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels and scores of this rank's samples."""
        return self._data.train.labels, self._matrix @ self._servers.published()[self._columns]

    def run_pass(self, number: int, progress: Callable[[int], None]) -> None:
        """Goes over this rank's samples once; `number` counts from 0, `progress` gets the number of steps done."""
        order = np.random.default_rng([self._seed, number, self._communicator.rank])
        samples = order.permutation(len(self._data.train.labels))
        for step in range(self.steps):
            own = np.sort(samples[step * self._batch : (step + 1) * self._batch])
            self._optimizer.learning_rate = self._rate * self._schedule(number + step / self.steps, self._decay)
            self._optimizer.apply([tf.constant(part) for part in np.split(self._gradient(own), [-1])])
            progress(step + 1)

    def finish(self) -> None:
        """Ends this rank's part; all ranks call it."""
        hvd.servers.finish(self._optimizer)

    def _gradient(self, own: np.ndarray) -> np.ndarray:
        """The gradient [features + 1] of the mean loss over these samples."""
        matrix, labels = self._matrix[own], self._data.train.labels[own]
        weights = np.append(self._weights.numpy(), self._intercept.numpy())[self._columns]
        slopes = self._loss.slope(labels * (matrix @ weights))
        gradient = np.zeros(self._data.features + 1, np.float32)
        gradient[self._columns] = matrix.T @ (labels * slopes / max(1, len(own)))
        return gradient
