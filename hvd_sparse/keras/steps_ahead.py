"""Train steps that look ahead: their tapes compute gradients as `optimizers/ahead.py` describes."""

from __future__ import annotations

import functools
from typing import Any

import keras

from hvd_sparse.keras.tracked import optimizers_of
from hvd_sparse.optimizers import attached
from hvd_sparse.optimizers.ahead import of_all, tapes_look_ahead
from hvd_sparse.transport.eager import making_variables

_WRAPPED = "_hvd_sparse_looks_ahead"


def looks_ahead(optimizer: Any) -> bool:
    """Whether gradients for an optimizer, also a loss-scaling one, are to be computed ahead."""
    part = attached.to(optimizer)
    return part is not None and part.looks_ahead


def optimizers_ahead(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """The optimizers that look ahead among all that the model tracks."""
    return [each for each in optimizers_of(model).values() if looks_ahead(each)]


def wrap(model: keras.Model) -> None:
    """Makes the tapes of a model's train step look ahead if an optimizer does; a second call changes nothing."""
    vars(model)[_WRAPPED] = True
    own_step = model.train_step
    if hasattr(own_step, _WRAPPED):
        return

    @functools.wraps(own_step)
    def step(data):
        if looks_ahead(model.optimizer):
            build_optimizer(model)
        optimizers = optimizers_ahead(model)
        with tapes_look_ahead(lambda: optimizers):
            return own_step(data)

    setattr(step, _WRAPPED, True)
    model.train_step = step
    if not hasattr(model.make_train_function, _WRAPPED):
        model.make_train_function = _guarded(model)


def build_optimizer(model: keras.Model) -> None:
    """Builds the optimizer before a train step is traced, as the trace reads its offsets and its loss scale.

    If there are several, nobody knows which has which variables before they are applied.
    """
    if model.built and not model.optimizer.built and len(optimizers_of(model)) == 1:
        with making_variables():
            model.optimizer.build(model.trainable_variables)


def is_wrapped(model: keras.Model) -> bool:
    """Whether the train step of a model was made to look ahead, even if it has been replaced since."""
    return _WRAPPED in vars(model)


def hooked_make_train_function(original: Any) -> Any:
    """Keras's `make_train_function`, for models whose optimizers are not known when they are compiled, as of a GAN."""

    @functools.wraps(original)
    def make_train_function(self, *args, **options):
        if hasattr(self.train_step, _WRAPPED) or not optimizers_ahead(self):
            return original(self, *args, **options)
        wrap(self)
        return self.make_train_function(*args, **options)

    return make_train_function


def _guarded(model: keras.Model) -> Any:
    """The model's `make_train_function`, whose functions restore the variables when they fail."""
    own_make = model.make_train_function

    def make_train_function(*args, **options):
        own_make(*args, **options)
        run = model.train_function
        if hasattr(run, _WRAPPED):
            return run

        @functools.wraps(run)
        def guarded(iterator):
            try:
                return run(iterator)
            except BaseException:
                for found in of_all(optimizers_ahead(model)):
                    found.recover()
                raise

        setattr(guarded, _WRAPPED, True)
        model.train_function = guarded
        return guarded

    setattr(make_train_function, _WRAPPED, True)
    return make_train_function
