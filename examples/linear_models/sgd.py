"""Stochastic gradient descent with large batches: sums the ranks' gradients as they are, sparse (SparCML 8.2).

A step takes the same samples for any number of ranks, if the batches of all ranks together are equally large: the order
is drawn over all samples, and each rank computes with those of a batch that it holds.

L2 regularisation shrinks all weights in every step. Here that is one multiplication, as the weights are stored as a
number times a vector; only the gradient of the loss crosses the network, as sparse as the batch is. The result is that
of the dense computation, except for rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import sparse

from examples.linear_models import data
from examples.linear_models.data import Data
from examples.linear_models.exchange import Entries, Exchange
from examples.linear_models.losses import Loss
from hvd_sparse.transport.communicator import Communicator

_SMALLEST = 2.0**-20  # below this the scale is multiplied into the vector

# The factor of the learning rate after `passes` of the data, with a decay per pass.
SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "constant": lambda passes, decay: 1.0,
    "inverse": lambda passes, decay: 1.0 / (1.0 + decay * passes),
    "inverse-sqrt": lambda passes, decay: (1.0 + decay * passes) ** -0.5,
}


class ScaledVector:
    """Weights [size] as scale * direction; the last one, the intercept, does not shrink with the others."""

    def __init__(self, size: int):
        self._direction, self._scale = np.zeros(size), 1.0

    def shrink(self, factor: float) -> None:
        """Multiplies all but the intercept; 0 < factor <= 1."""
        self._scale *= factor
        self._direction[-1] /= factor
        if self._scale < _SMALLEST:
            self._direction *= self._scale
            self._scale = 1.0

    def subtract(self, entries: Entries, factor: float) -> None:
        """Subtracts factor times these entries."""
        where = slice(None) if entries.indices is None else entries.indices
        self._direction[where] -= np.multiply(entries.values, factor / self._scale, dtype=np.float64)

    def at(self, columns: np.ndarray) -> np.ndarray:
        """The weights of some columns."""
        return self._scale * self._direction[columns]

    def whole(self) -> np.ndarray:
        """All weights."""
        return self._scale * self._direction


class GradientDescent:
    """SGD; every rank makes it with the same arguments, but with its own samples.

    Args:
        communicator: the ranks.
        given: the samples.
        loss: the loss; the objective is its mean over all samples plus l2 / 2 |weights|^2.
        exchange: sums the gradients, of features + 1 elements.
        l2: strength of the regularisation.
        batch: samples per step, of all ranks together.
        learning_rate: initial learning rate; None for `safe_learning_rate`.
        schedule: one of SCHEDULES.
        decay: decay of the schedule, per pass.
        seed: seed of the order of the samples.

    Raises:
        ValueError: on every rank alike, if the learning rate is too large for the regularisation.
    """

    def __init__(
        self,
        communicator: Communicator,
        given: Data,
        loss: Loss,
        exchange: Exchange,
        l2: float,
        batch: int,
        learning_rate: float | None = None,
        schedule: str = "constant",
        decay: float = 1.0,
        seed: int = 0,
    ):
        self._data, self._loss, self._exchange, self._l2 = given, loss, exchange, l2
        self._batch, self._schedule, self._decay, self._seed = batch, SCHEDULES[schedule], decay, seed
        self._rate = safe_learning_rate(communicator, given, loss, l2) if learning_rate is None else learning_rate
        if self._rate * l2 >= 1:
            raise ValueError(
                f"Expected a learning rate below 1 / l2 = {1 / l2:g}, got {self._rate:g}: every step would flip "
                "the sign of the weights. Choose a smaller --learning-rate or --l2."
            )
        self._weights = ScaledVector(given.features + 1)
        self._columns, self._matrix = compact(given)
        self.steps = -(-given.samples // batch)

    @property
    def settings(self) -> dict[str, float]:
        """The settings to report with a run."""
        return {"learning_rate": self._rate, "batch": self._batch, "steps": self.steps}

    def weights(self) -> np.ndarray:
        """All weights, the intercept last."""
        return self._weights.whole()

    def training_scores(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels and scores of this rank's samples."""
        return self._data.train.labels, self._matrix @ self._weights.at(self._columns)

    def run_pass(self, number: int, progress: Callable[[int], None]) -> None:
        """Goes over all samples once; `number` counts from 0, `progress` gets the number of steps done."""
        order = np.random.default_rng([self._seed, number]).permutation(self._data.samples)
        for step in range(self.steps):
            batch = order[step * self._batch : (step + 1) * self._batch]
            self._step(batch, self._rate * self._schedule(number + step / self.steps, self._decay))
            progress(step + 1)

    def _step(self, batch: np.ndarray, rate: float) -> None:
        summed = self._exchange.sum(self._gradient(batch))
        self._weights.shrink(1 - rate * self._l2)
        self._weights.subtract(summed, rate)

    def _gradient(self, batch: np.ndarray) -> Entries:
        """This rank's part of the gradient of the mean loss over the batch of all ranks."""
        own = batch - self._data.first
        own = np.sort(own[(own >= 0) & (own < len(self._data.train.labels))])
        matrix, labels = self._matrix[own], self._data.train.labels[own]
        slopes = self._loss.slope(labels * (matrix @ self._weights.at(self._columns)))
        gradient = matrix.T @ (labels * slopes / len(batch))
        there = np.flatnonzero(gradient)
        return Entries(self._columns[there], gradient[there].astype(np.float32))


def safe_learning_rate(communicator: Communicator, given: Data, loss: Loss, l2: float) -> float:
    """1 / (c r^2 + l2), with which full-batch gradient descent always descends; a collective.

    r is the greatest norm of a sample, c the loss's curvature, or 1 if it has none.
    """
    squares = np.asarray(given.train.matrix.power(2).sum(axis=1))
    longest = data.greatest(communicator, float(squares.max(initial=0.0)), "linear.longest")
    return 1.0 / ((loss.curvature or 1.0) * longest + l2)


def compact(given: Data) -> tuple[np.ndarray, sparse.csr_matrix]:
    """The columns int32 [used] that occur in this rank's samples, and their matrix with only these columns."""
    matrix = given.train.matrix
    used = np.zeros(given.features + 1, bool)
    used[matrix.indices] = True
    columns = np.flatnonzero(used).astype(np.int32)
    places = np.cumsum(used, dtype=np.int32) - 1
    parts = (matrix.data, places[matrix.indices], matrix.indptr)
    return columns, sparse.csr_matrix(parts, (matrix.shape[0], len(columns)))
