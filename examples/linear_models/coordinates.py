"""Distributed random block coordinate descent (SparCML 8.2, after Wright, "Coordinate descent algorithms", 2015).

Each rank owns a slice of the weights. In each iteration it draws some of its coordinates, takes a step along each of
them, and sends the new values to all others: a gathering of disjoint entries. For this every rank holds all samples, by
columns, and the model's score of each sample, which it updates with the values that arrive.

The step along coordinate j is the partial derivative divided by b L_j, where L_j bounds the second derivative along
it and b bounds what all coordinates that move at once can add to each other: b = 1 + w p, with w the most nonzeros in
a sample and p the greatest share of its coordinates that a rank draws. With it the expected loss never rises.
(Coordinates i and j of one sample move together with a probability of at most p^2 on different ranks, and less on
one; so the expected square of a sum of w terms is at most p (1 + p w) times the sum of their squares.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from examples.linear_models.data import Data
from examples.linear_models.exchange import Entries, Exchange
from examples.linear_models.losses import LOSSES, Loss
from hvd_sparse.transport.communicator import Communicator


class CoordinateDescent:
    """Block coordinate descent; every rank makes it with the same arguments and with all samples.

    Args:
        communicator: the ranks.
        given: the samples.
        loss: the loss; the objective is its mean over all samples plus l2 / 2 |weights|^2.
        exchange: gathers new weights, out of features + 1.
        l2: strength of the regularisation.
        coordinates: coordinates that a rank draws in an iteration, out of those that occur in the samples.
        iterations: iterations per pass; by default as many as it takes to draw as many coordinates as there are.
        seed: seed of the draws.

    Raises:
        ValueError: if the loss has no curvature.
    """

    def __init__(
        self,
        communicator: Communicator,
        given: Data,
        loss: Loss,
        exchange: Exchange,
        l2: float,
        coordinates: int = 100,
        iterations: int | None = None,
        seed: int = 0,
    ):
        if loss.curvature is None:
            smooth = ", ".join(name for name, each in LOSSES.items() if each.curvature is not None)
            raise ValueError(
                f"Expected a loss with a derivative for coordinate descent ({smooth}), got one without a derivative."
            )
        self._data, self._loss, self._exchange, self._l2 = given, loss, exchange, l2
        self._rank, self._seed = communicator.rank, seed
        self._rows, self._columns = given.train.matrix, given.train.matrix.tocsc()
        self._weights = np.zeros(given.features + 1, np.float32)
        self._scores = np.zeros(given.samples)
        self._bounds = [(given.features + 1) * rank // communicator.size for rank in range(communicator.size + 1)]
        self._share = [given.samples * rank // communicator.size for rank in (self._rank, self._rank + 1)]
        occurring = np.flatnonzero(np.diff(self._columns.indptr))
        owned = np.split(occurring, np.searchsorted(occurring, self._bounds[1:-1]))
        self._own = owned[self._rank]
        self._counts = [min(coordinates, len(each)) for each in owned]
        drawn = max(count / len(each) for count, each in zip(self._counts, owned, strict=True) if count)
        self._damping = 1.0 + int(np.diff(self._rows.indptr).max()) * drawn
        self.steps = -(-len(occurring) // sum(self._counts)) if iterations is None else iterations

    @property
    def settings(self) -> dict[str, float]:
        """The settings to report with a run."""
        return {"coordinates": sum(self._counts), "damping": self._damping, "steps": self.steps}

    def weights(self) -> np.ndarray:
        """All weights, the intercept last."""
        return self._weights.astype(np.float64)

    def training_scores(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels and scores of this rank's share of the samples."""
        share = slice(*self._share)
        return self._data.train.labels[share], self._scores[share]

    def run_pass(self, number: int, progress: Callable[[int], None]) -> None:
        """Does one pass's iterations; `number` counts from 0, `progress` gets the number of iterations done."""
        drawing = np.random.default_rng([self._seed, number, self._rank])
        for step in range(self.steps):
            self._iterate(np.sort(drawing.choice(self._own, self._counts[self._rank], replace=False)))
            progress(step + 1)
        # Computed anew, so that rounding errors of the updates do not add up.
        self._scores = self._rows @ self._weights.astype(np.float64)

    def _iterate(self, drawn: np.ndarray) -> None:
        own = Entries(drawn.astype(np.int32), self._stepped(drawn))
        new = self._exchange.gather(own, self._weights, self._bounds, self._counts)
        moved = new.values.astype(np.float64) - self._weights[new.indices]
        self._scores += self._columns[:, new.indices] @ moved
        self._weights[new.indices] = new.values

    def _stepped(self, drawn: np.ndarray) -> np.ndarray:
        """The new float32 weights of some coordinates."""
        block = self._columns[:, drawn]
        labels = self._data.train.labels
        slopes = labels * self._loss.slope(labels * self._scores) / self._data.samples
        l2 = np.where(drawn == self._data.features, 0.0, self._l2)
        weights = self._weights[drawn].astype(np.float64)
        squares = np.asarray(block.power(2).sum(axis=0)).ravel() / self._data.samples
        steepest = self._loss.curvature * squares + l2
        return (weights - (block.T @ slopes + l2 * weights) / (self._damping * steepest)).astype(np.float32)
