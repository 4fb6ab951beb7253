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
from hvd_sparse.optimizers import ahead, tapes
from hvd_sparse.optimizers.variables import path_of, resource
from hvd_sparse.transport import first_rank

_COMPILED = "_hvd_sparse_compiled"


def compiled_train_step(model: keras.Model) -> keras.Model:
    """Lets XLA compile the forward and backward pass of a model, and leaves optimizer and exchange outside.

    Call it before or after `compile`, with any `jit_compile`. The model's own `train_step` (Keras's, or one that calls
    `self.optimizer.apply_gradients` or `apply` once) is traced with a stand-in for the optimizer that takes the
    gradients, so sample weights, added losses, metrics, normalization statistics and loss scaling work as before.
    A write to weights in the forward pass, as by `keras.layers.SpectralNormalization`, is kept. What follows `apply` in
    a train step of your own runs before the optimizer's update, so it must not use the weights; before `apply` it may.
    Evaluation and prediction are not compiled. Nothing is compiled with `run_eagerly=True`, or, with a warning, if
    layers have collectives in the forward pass (`SyncBatchNormalization`).

    All gradients leave the compiled part together, so the exchange does not overlap with the backward pass.

    Args:
        model: the model, which is changed in place.

    Returns:
        The same model.

    Raises:
        ValueError: in the first step, if the model's own `train_step` applies gradients twice, or uses weights after
            that.
    """
    own_step = type(model).train_step.__get__(model)

    def step(data):
        if model.run_eagerly:
            return own_step(data)
        if synchronises(model):
            warnings.warn(
                f"{model.name} is not compiled by XLA, which cannot compile the collectives of its "
                "SyncBatchNormalization layers.",
                stacklevel=first_rank.users_level(),
            )
            return own_step(data)
        steps_ahead.build_optimizer(model)
        taker = _GradientTaker(model.optimizer)

        # A new function for each trace of the outer step, as its results belong to the variables of that trace.
        @tf.function(jit_compile=True, autograph=False, reduce_retracing=True)
        def forward_and_backward(data):
            with _stand_in(model, taker), tapes.one_program():
                logs = own_step(data)
            taker.check_what_follows()
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
        self._graph: Any = None
        self._before: set[str] = set()  # the operations of the graph before gradients were applied

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
        for looking in ahead.of_all([self._optimizer]):
            grads = tapes.after(looking.land(), list(grads))
        self.gradients, self.variables = list(grads), trainable_variables
        self._graph = tf.compat.v1.get_default_graph()
        self._before = {each.name for each in self._graph.get_operations()}

    def check_what_follows(self) -> None:
        """Raises ValueError if the train step uses weights after it has applied gradients."""
        if self.gradients is None:
            return
        after = [each for each in self._graph.get_operations() if each.name not in self._before]
        used = {id(source) for each in after for source in each.inputs}
        inside = {id(outer): id(inner) for outer, inner in self._graph.captures}
        for variable in self.variables or ():
            if inside.get(id(resource(variable).handle)) in used:
                raise ValueError(
                    f"compiled_train_step updates the weights after the whole train_step, and this one uses "
                    f"{path_of(variable)} after it has applied gradients, before which XLA would do so: move that to "
                    "before apply or into a callback's on_train_batch_end, or leave out compiled_train_step."
                )


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
