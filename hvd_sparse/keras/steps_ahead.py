"""Train steps that look ahead: a model's gradients are computed as `exchange/ahead.py` describes."""

from __future__ import annotations

import functools
from typing import Any

import keras

from hvd_sparse.exchange.ahead import looking_ahead, of
from hvd_sparse.transport.eager import making_variables

_WRAPPED = "_hvd_sparse_looks_ahead"


def wrap(model: keras.Model) -> None:
    """Makes the train step of a model look ahead if its optimizer does; a second call changes nothing."""
    vars(model)[_WRAPPED] = True
    own_step = model.train_step
    if hasattr(own_step, _WRAPPED):
        return

    @functools.wraps(own_step)
    def step(data):
        build_optimizer(model)
        with looking_ahead(model.optimizer):
            return own_step(data)

    setattr(step, _WRAPPED, True)
    model.train_step = step
    if not hasattr(model.make_train_function, _WRAPPED):
        model.make_train_function = _guarded(model)


def build_optimizer(model: keras.Model) -> None:
    """Builds the optimizer before a train step is traced, as the trace reads its offsets and its loss scale."""
    if model.built and not model.optimizer.built:
        with making_variables():
            model.optimizer.build(model.trainable_variables)


def is_wrapped(model: keras.Model) -> bool:
    """Whether the train step of a model was made to look ahead, even if it has been replaced since."""
    return _WRAPPED in vars(model)


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
                found = of(model.optimizer)
                if found is not None:
                    found.recover()
                raise

        setattr(guarded, _WRAPPED, True)
        model.train_function = guarded
        return guarded

    setattr(make_train_function, _WRAPPED, True)
    return make_train_function
