"""Ranks take the same number of steps in `fit`; if they do not, it is one error on all of them.

If all ranks know how many batches an epoch has, they compare that once, before the first step. Otherwise, as with
`tf.data.Dataset.from_generator`, a rank whose epoch ends announces it (`exchange/ending.py`), in each epoch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.exchange.ending import REMEDY, Ending, message
from hvd_sparse.exchange.gradients import GradientExchange

_UNKNOWN = -1


class EqualSteps(keras.callbacks.Callback):
    """Raises ValueError on every rank if one has fewer batches; `fit` puts it before all other callbacks.

    Args:
        exchange: the exchange of the model's optimizer.
    """

    def __init__(self, exchange: GradientExchange):
        super().__init__()
        self._exchange = exchange
        self._batches: int | None = None
        self._begun = 0
        self._announced = True

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Compares the numbers of batches of one epoch, as far as they are known; a collective of 8 bytes."""
        batches = self.params.get("steps")
        own = _UNKNOWN if batches is None else int(batches)
        world = self._exchange.grid().world
        told = world.allgather(tf.constant([own], tf.int64), "fit.batches").numpy().tolist()
        self._batches = None if _UNKNOWN in told else own
        if self._batches is not None:
            self._require_equal(dict(zip(world.ranks, told, strict=True)))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._begun, self._announced = self._exchange.step, False

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Validation follows the last batch of an epoch."""
        self._end()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._end()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """A rank may have stopped after a whole epoch, by a metric of its own."""
        if getattr(self.model, "stop_training", False):
            self._announced, self._batches = False, None
            self._end()

    def _require_equal(self, batches: dict[int, int]) -> None:
        accumulated = getattr(self.model.optimizer, "gradient_accumulation_steps", None) or 1
        epochs = self.params.get("epochs") or 1
        if len({each * epochs // accumulated for each in batches.values()}) == 1:
            return
        fewest, most = min(batches, key=batches.__getitem__), max(batches, key=batches.__getitem__)
        raise ValueError(
            f"Rank {fewest} has {batches[fewest]} batches in each epoch, and rank {most} has {batches[most]}, but all "
            f"ranks exchange in every step. {REMEDY}"
        )

    def _end(self) -> None:
        """Announces that the epoch has ended on this rank, unless all ranks know how many batches it has, and had."""
        taken = self._exchange.step - self._begun
        if self._announced or self._exchange.step == 0 or taken == self._batches:
            return
        self._announced = True
        planned, eager = self._exchange.planned, bool(self.model.run_eagerly)
        if planned.ending is None or planned.ending.eager is not eager:
            scaled = isinstance(self.model.optimizer, keras.optimizers.LossScaleOptimizer)
            planned.ending = Ending(planned, eager, scaled)
        planned.ending.announce(taken)


@contextlib.contextmanager
def required(exchange: GradientExchange, model: keras.Model, callbacks: Any) -> Iterator[Any]:
    """Context of a `fit` that is an error on every rank as soon as one takes fewer steps.

    Args:
        exchange: that of the optimizer, on several ranks.
        model: the model that is trained.
        callbacks: those of `fit`: None, a callback, a nest of them, or Keras's list of them.

    Yields:
        The callbacks that `fit` is to get.

    Raises:
        ValueError: the same on every rank, if a rank takes fewer steps.
    """
    own, prepared = EqualSteps(exchange), hasattr(callbacks, "callbacks")
    if prepared:
        own.set_params(callbacks.params)
        own.set_model(model)
        callbacks.callbacks.insert(0, own)
    try:
        yield callbacks if prepared else [own, *(tf.nest.flatten(callbacks) if callbacks else [])]
    except tf.errors.InvalidArgumentError as error:
        told = message(error)
        if told:
            raise ValueError(told) from None
        raise
    finally:
        if prepared:
            callbacks.callbacks.remove(own)
