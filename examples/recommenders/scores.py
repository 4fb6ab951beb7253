"""Loss, accuracy and area under the ROC curve, evaluated by all ranks together."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from examples.recommenders.tables import Batch, Rows
from hvd_sparse.transport.communicator import Communicator

_BINS, _LIMIT = 2**14, 16.0  # of logits; those beyond the limit are clipped


class Scores:
    """Scores of a model; a call is a collective, and returns the same on all ranks.

    Args:
        model: from numbers and categories to logits [batch, 1]; evaluated with its weights at the time of each call.
        rows: rows, each of which is evaluated by one rank.
        batch: rows that a rank evaluates at once.
    """

    def __init__(self, model: keras.Model, rows: Rows, batch: int = 4_096):
        self._rows, self._batch = rows, batch
        self._specified = [tf.TensorSpec([None, each.shape[1]], each.dtype) for each in model.inputs]
        self._logits = tf.function(
            lambda *inputs: model(list(inputs), training=False),
            input_signature=self._specified,
            autograph=False,
        )

    def __call__(self) -> dict[str, float]:
        """Cross entropy "loss", "accuracy" and "auc"."""
        world = hvd.topology.world()
        sums, histograms = np.zeros(3), np.zeros((2, _BINS))
        for batch in self._in_step(world):
            logits = self.logits(batch.numbers, batch.categories)
            losses = np.logaddexp(0.0, logits) - batch.labels * logits
            sums += [len(logits), losses.sum(), ((logits > 0) == (batch.labels > 0)).sum()]
            for label in (0, 1):
                histograms[label] += _histogram(logits[batch.labels == label])
        own = tf.constant(np.concatenate([sums, histograms.ravel()]))
        everyones = world.allreduce(own, "sum", "recommender.scores").numpy()
        count, loss, right = everyones[:3]
        area = _area(*everyones[3:].reshape(2, _BINS))
        return {"loss": float(loss / count), "accuracy": float(right / count), "auc": area}

    def _in_step(self, world: Communicator) -> Iterator[Batch]:
        """This rank's batches, then empty ones while others have more, as the model itself may use collectives."""
        own = self._rows.share(self._batch, world.rank, world.size)
        shapes = [np.zeros((0, *each.shape[1:]), each.dtype.as_numpy_dtype) for each in self._specified]
        none = Batch(*shapes, np.zeros(0, np.float32))
        while True:
            batch = next(own, None)
            if not world.allreduce(tf.constant(int(batch is not None)), "max", "recommender.batches"):
                return
            yield none if batch is None else batch

    def logits(self, numbers: np.ndarray, categories: np.ndarray) -> np.ndarray:
        """Logits float64 [batch] of rows."""
        return self._logits(tf.constant(numbers), tf.constant(categories)).numpy()[:, 0].astype(np.float64)


def _histogram(logits: np.ndarray) -> np.ndarray:
    places = (np.clip(logits, -_LIMIT, _LIMIT) + _LIMIT) / (2 * _LIMIT) * (_BINS - 1)
    return np.bincount(places.astype(np.int64), minlength=_BINS)


def _area(no: np.ndarray, yes: np.ndarray) -> float:
    """The share of pairs of a no and a yes in which the yes has the higher logit; ties in a bin count half."""
    below = np.cumsum(no) - no
    pairs = no.sum() * yes.sum()
    return float((yes @ (below + no / 2)) / pairs) if pairs else float("nan")
