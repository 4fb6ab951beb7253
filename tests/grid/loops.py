"""The axis of loops: what runs the steps of an epoch, eagerly or traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from tests.grid.models import BATCH, Two

Batches = Sequence[tuple[np.ndarray, np.ndarray]]


def fit(model: keras.Model, batches: Batches, epoch: int, callbacks: Sequence[Any]) -> None:
    """`model.fit`, with the number of the epoch."""
    inputs, targets = (np.concatenate(each) for each in zip(*batches, strict=True))
    resumes = any(isinstance(each, hvd.callbacks.CheckpointCallback) for each in callbacks)
    begins = 0 if resumes else epoch  # it says which epoch begins
    model.fit(
        inputs,
        targets,
        batch_size=BATCH,
        initial_epoch=begins,
        epochs=epoch + 1,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )


def train_on_batch(model: keras.Model, batches: Batches, epoch: int, callbacks: Sequence[Any]) -> None:
    """`model.train_on_batch`, with callbacks that are called by hand."""
    _by_hand(model, batches, epoch, callbacks, model.train_on_batch)


def tape(model: keras.Model, batches: Batches, epoch: int, callbacks: Sequence[Any]) -> None:
    """A loop with a `tf.GradientTape`, as in scripts."""
    _build(model)
    _by_hand(model, batches, epoch, callbacks, _step_of(model))


def function(model: keras.Model, batches: Batches, epoch: int, callbacks: Sequence[Any]) -> None:
    """The same in a `tf.function`."""
    _build(model)
    traced = tf.function(_step_of(model))
    _by_hand(model, batches, epoch, callbacks, lambda *batch: traced(*map(tf.constant, batch)))


def _build(model: keras.Model) -> None:
    if not isinstance(model, Two) and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _step_of(model: keras.Model) -> Callable[..., None]:
    def step(inputs: Any, targets: Any) -> None:
        if isinstance(model, Two):
            model.train_step((tf.convert_to_tensor(inputs), tf.convert_to_tensor(targets)))
            return
        optimizer, variables = model.optimizer, model.trainable_variables
        with hvd.looking_ahead(optimizer), tf.GradientTape() as recorded:
            loss = optimizer.scale_loss(tf.reduce_mean(tf.square(model(inputs, training=True) - targets)))
        optimizer.apply(recorded.gradient(loss, variables), variables)

    return step


def _by_hand(
    model: keras.Model, batches: Batches, epoch: int, callbacks: Sequence[Any], step: Callable[..., Any]
) -> None:
    called = keras.callbacks.CallbackList(list(callbacks), model=model)
    called.on_train_begin()
    called.on_epoch_begin(epoch)
    for number, (inputs, targets) in enumerate(batches):
        called.on_train_batch_begin(number)
        step(inputs, targets)
        called.on_train_batch_end(number)
    called.on_epoch_end(epoch, {})
    called.on_train_end()


class Loop(NamedTuple):
    """What runs an epoch, and how the model is compiled for it."""

    train: Callable[..., None]
    compiled: dict[str, Any]

    @property
    def is_eager(self) -> bool:
        """Whether ranks can be threads."""
        return "run_eagerly" in self.compiled


_EAGER = {"run_eagerly": True}
LOOPS = {
    "tape": Loop(tape, _EAGER),
    "train_on_batch": Loop(train_on_batch, _EAGER),
    "fit": Loop(fit, _EAGER),
}
TRACED = {
    "function": Loop(function, {}),
    "fit_graph": Loop(fit, {"jit_compile": False}),
    "fit_xla": Loop(fit, {"jit_compile": "auto"}),
    "fit_several": Loop(fit, {"steps_per_execution": 2}),
}
