"""Hybrid training in NumPy: trainers of two stages, which exchange each stage's gradients.

The first stage is a dense layer with ReLU, the second a dense layer, with a threshold in between; the loss is the mean
squared error, and the optimizer plain gradient descent. Exchanges are those of `tests/simulation.py`, equal to the
library bit for bit; the rest is in a chosen dtype. If float32 and float64 agree, no selection depends on rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hvd_sparse.pipeline.threshold import kept_of
from tests.gpu import reference
from tests.simulation import Simulation


class Settings(NamedTuple):
    """The settings of a training.

    Attributes:
        sparsity: the sparsity at the split.
        rate: the learning rate.
        micro_batches: the number into which each trainer's batch is cut.
    """

    sparsity: float
    rate: float
    micro_batches: int


class Hybrid:
    """All ranks of a grid of two stages.

    Attributes:
        weights: kernel and bias of each stage; the same in all trainers.
        exchanges: of each stage, pairs of an exchange and the numbers of the variables in it.
    """

    def __init__(
        self,
        weights: Sequence[Sequence[np.ndarray]],
        exchanges: Sequence[Sequence[tuple[Simulation, Sequence[int]]]],
        settings: Settings,
        dtype: type = np.float64,
    ):
        self.weights = [[each.astype(dtype) for each in own] for own in weights]
        self.exchanges, self._settings, self._dtype = exchanges, settings, dtype

    def step(self, batches: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        """Takes one step with a batch for each trainer."""
        found = [self._gradients(x.astype(self._dtype), y.astype(self._dtype)) for x, y in batches]
        for stage, exchanges in enumerate(self.exchanges):
            for exchange, numbers in exchanges:
                vectors = [_flat([gradients[stage][each] for each in numbers]) for gradients in found]
                self._descend([self.weights[stage][each] for each in numbers], exchange.step(vectors))

    def residuals(self, stage: int, trainer: int) -> list[np.ndarray]:
        """The residuals of a rank, one per variable."""
        found = [np.zeros(0)] * len(self.weights[stage])
        for exchange, numbers in self.exchanges[stage]:
            sizes = [self.weights[stage][each].size for each in numbers]
            pieces = np.split(exchange.residual[trainer], np.cumsum(sizes)[:-1])
            for number, piece in zip(numbers, pieces, strict=True):
                found[number] = piece
        return found

    def _descend(self, weights: Sequence[np.ndarray], mean: np.ndarray) -> None:
        pieces = np.split(mean.astype(self._dtype), np.cumsum([each.size for each in weights])[:-1])
        for weight, piece in zip(weights, pieces, strict=True):
            weight -= self._dtype(self._settings.rate) * piece.reshape(weight.shape)

    def _gradients(self, x: np.ndarray, y: np.ndarray) -> list[list[np.ndarray]]:
        """One trainer's gradients for both stages: micro-batches weighted by their samples, added up in order."""
        count, total = self._settings.micro_batches, None
        for number in range(count):
            own = slice(len(x) * number // count, len(x) * (number + 1) // count)
            found = self._of_micro_batch(x[own], y[own], self._dtype((own.stop - own.start) / len(x)))
            total = found if total is None else [_plus(*each) for each in zip(total, found, strict=True)]
        assert total is not None
        return total

    def _of_micro_batch(self, x: np.ndarray, y: np.ndarray, share: np.floating) -> list[list[np.ndarray]]:
        (kernel, bias), (last_kernel, last_bias) = self.weights
        hidden = np.maximum(x @ kernel + bias, 0)
        passing = np.zeros_like(hidden)
        kept = kept_of(hidden.shape[1], self._settings.sparsity)
        np.put_along_axis(passing, reference.largest_of_rows(hidden.astype("f4"), kept), 1, 1)
        handed_on = hidden * passing
        error = handed_on @ last_kernel + last_bias - y
        of_output = self._dtype(2 / error.size) * share * error
        of_hidden = of_output @ last_kernel.T * passing * (hidden > 0)
        return [[x.T @ of_hidden, of_hidden.sum(0)], [handed_on.T @ of_output, of_output.sum(0)]]


def _plus(total: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [a + b for a, b in zip(total, other, strict=True)]


def _flat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([each.reshape(-1) for each in arrays]).astype("f4")
