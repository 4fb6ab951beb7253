"""A train step whose forward and backward pass is compiled by XLA and whose exchange is not."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.keras import steps_ahead
from hvd_sparse.keras.sync_batch_norm import synchronises

_COMPILED = "_hvd_sparse_compiled"


def compiled_train_step(model: keras.Model) -> keras.Model:
    """Lets XLA compile the forward and backward pass of a model, and leaves optimizer and exchange outside.

    Call it before or after `compile`, with any `jit_compile`. The model's own `train_step` (Keras's, or one that calls
    `self.optimizer.apply_gradients` or `apply` once) is traced with a stand-in for the optimizer that takes the
    gradients, so sample weights, added losses, metrics, normalization statistics and loss scaling work as before.
    Evaluation and prediction are not compiled. Nothing is compiled with `run_eagerly=True`, or, with a warning, if
    layers have collectives in the forward pass (`SyncBatchNormalization`).

    All gradients leave the compiled part together, so the exchange does not overlap with the backward pass.

    Args:
        model: the model, which is changed in place.

    Returns:
        The same model.
    """
    own_step = type(model).train_step.__get__(model)

    def step(data):
        if model.run_eagerly:
            return own_step(data)
        if synchronises(model):
            warnings.warn(
                f"{model.name} is not compiled by XLA, which cannot compile the collectives of its "
                "SyncBatchNormalization layers.",
                stacklevel=2,
            )
            return own_step(data)
        steps_ahead.build_optimizer(model)
        taker = _GradientTaker(model.optimizer)

        # A new function for each trace of the outer step, as its results belong to the variables of that trace.
        @tf.function(jit_compile=True, autograph=False, reduce_retracing=True)
        def forward_and_backward(data):
            with _stand_in(model, taker):
                logs = own_step(data)
            return logs, taker.gradients

        logs, gradients = forward_and_backward(data)
        if gradients is not None:
            model.optimizer.apply(gradients, taker.variables)
        return logs

    setattr(step, _COMPILED, True)
    model.train_step = step
    if model.compiled:
        model.jit_compile = False
        model.train_function = None
        if steps_ahead.is_wrapped(model):
            steps_ahead.wrap(model)
    return model


def is_compiled(model: keras.Model) -> bool:
    """Whether `compiled_train_step` was applied to a model."""
    return hasattr(model.train_step, _COMPILED)


class _GradientTaker:
    """Stands in for the optimizer in a train step: it takes the gradients and passes on everything else."""

    def __init__(self, optimizer: keras.optimizers.Optimizer):
        self._optimizer = optimizer
        self.gradients: list[Any] | None = None
        self.variables: Sequence[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def apply_gradients(self, grads_and_vars) -> Any:
        gradients, variables = zip(*grads_and_vars, strict=True)
        self.apply(gradients, variables)
        return self._optimizer.iterations

    def apply(self, grads, trainable_variables=None) -> None:
        if self.gradients is not None:
            raise ValueError(
                "compiled_train_step handles one optimizer step, and this train_step applies gradients twice: "
                "apply them together, or leave out compiled_train_step."
            )
        self.gradients, self.variables = list(grads), trainable_variables


@contextlib.contextmanager
def _stand_in(model: keras.Model, taker: _GradientTaker) -> Iterator[None]:
    # Bypasses __setattr__, which would track the stand-in as a part of the model.
    optimizer = vars(model)["optimizer"]
    taker.gradients = taker.variables = None
    vars(model)["optimizer"] = taker
    try:
        yield
    finally:
        vars(model)["optimizer"] = optimizer
