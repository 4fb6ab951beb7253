"""Hooks that fit Keras to optimizers in whose steps something takes part (`optimizers/attached.py`).

tests/keras/test_hooks.py names the versions of Keras that they were tested with. Keras is changed in six places:

- `compile` of a model: XLA cannot compile Horovod's collectives, so a model with a distributed optimizer gets a train
  step whose exchange stays outside (see `train_step.py`), or is refused with an error message. Arguments that Horovod's
  scripts still pass and Keras 3 has removed are dropped, with a warning.
- `check_finite` of Keras's loss-scaling optimizer: whether a step is skipped decides whether gradients are exchanged,
  so around a distributed optimizer all ranks decide together; and its `apply`, as models are averaged even after a step
  that a rank has skipped.
- `save` and `save_weights` of a model: if the models of ranks differ, they require the mean of the models.
- `set_weights` of a layer and `load_weights` of a model: what waits to be sent belongs to the weights before.
- `make_train_function` of a model: its steps look ahead if one of its optimizers does (see `steps_ahead.py`).
- `_initial_epoch` of a model, which Keras lets callbacks set, to resume `fit`.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any

import keras

from hvd_sparse.keras import removed_arguments, steps_ahead, train_step, writing
from hvd_sparse.optimizers import ahead, attached, tapes
from hvd_sparse.transport import first_rank

_HOOKED = "_hvd_sparse_hooked"


def install() -> None:
    """Installs the hooks in Keras; a second call does nothing."""
    owner = next(cls for cls in keras.Model.__mro__ if "compile" in vars(cls))
    if not hasattr(owner.compile, _HOOKED):
        # On the class that defines it: loading a model checks that `compile` was not overridden in a subclass.
        owner.compile = _hooked_compile(owner.compile)
    owner = next(cls for cls in keras.Model.__mro__ if "make_train_function" in vars(cls))
    if not hasattr(owner.make_train_function, _HOOKED):
        owner.make_train_function = steps_ahead.hooked_make_train_function(owner.make_train_function)
        setattr(owner.make_train_function, _HOOKED, True)
    for name in ("save", "save_weights"):
        if not hasattr(getattr(keras.Model, name), _HOOKED):
            setattr(keras.Model, name, _hooked_save(getattr(keras.Model, name)))
    writing.install()
    scaler = keras.optimizers.LossScaleOptimizer
    if not hasattr(scaler.check_finite, _HOOKED):
        scaler.check_finite = _hooked_check_finite(scaler.check_finite)
        scaler.apply = _hooked_apply(scaler.apply)
    tapes.install()


def adopt(model: keras.Model) -> None:
    """Adapts a compiled model to a distributed optimizer: if it is to run under XLA, the exchange stays outside.

    A user-defined train step is not compiled, as it may contain what XLA cannot compile; a warning says so.
    """
    if steps_ahead.looks_ahead(model.optimizer):
        steps_ahead.wrap(model)
    if not model.jit_compile or attached.to(model.optimizer) is None:
        return
    model.jit_compile = False
    if train_step.is_compiled(model):
        return
    if type(model).train_step is keras.Model.train_step:
        train_step.compiled_train_step(model)
        return
    warnings.warn(
        f"{type(model).__name__} has a train_step of its own, so it is not compiled by XLA (Horovod's collectives "
        "cannot be). Call hvd.compiled_train_step(model) to compile its forward and backward pass.",
        stacklevel=first_rank.users_level(),
    )


def resume_at(model: keras.Model, epoch: int | None) -> None:
    """Makes the `fit` that is about to begin start at this epoch; call it in `on_train_begin`.

    Keras keeps the epoch for every later `fit`; call it with None in `on_train_end`, so that these begin as asked.
    """
    model._initial_epoch = epoch


def resumes(model: keras.Model) -> bool:
    """Whether `resume_at` has been called for the present `fit`."""
    return bool(model._initial_epoch)


def _hooked_compile(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile(self, *args, **kwargs):
        if attached.to(kwargs.get("optimizer", args[0] if args else None)) is not None:
            kwargs = removed_arguments.left_out(kwargs)
        asked = signature.bind(self, *args, **kwargs).arguments
        forced = asked.get("jit_compile") is True and not asked.get("run_eagerly")
        if forced and attached.to(asked.get("optimizer")) is not None and not train_step.is_compiled(self):
            raise ValueError(
                "jit_compile=True asks XLA to compile the whole train step, but communication with other ranks cannot "
                'be compiled. Leave jit_compile at "auto", or compile only the forward and backward pass: '
                "model = hvd.compiled_train_step(model) before model.compile(...)."
            )
        original(self, *args, **kwargs)
        adopt(self)

    setattr(compile, _HOOKED, True)
    return compile


def _hooked_save(original: Any) -> Any:
    @functools.wraps(original)
    def save(self, *args, **kwargs):
        part = attached.to(getattr(self, "optimizer", None))
        if part is not None:
            part.require_savable()
        return original(self, *args, **kwargs)

    setattr(save, _HOOKED, True)
    return save


def _hooked_check_finite(original: Any) -> Any:
    @functools.wraps(original)
    def check_finite(self, grads):
        finite = original(self, ahead.landed(self, grads))
        part = attached.to(self)
        return finite if part is None else part.finite(finite)

    setattr(check_finite, _HOOKED, True)
    return check_finite


def _hooked_apply(original: Any) -> Any:
    @functools.wraps(original)
    def apply(self, grads, trainable_variables=None):
        part = attached.to(self)
        step = functools.partial(original, self, grads, trainable_variables)
        if part is None:
            step()
        else:
            part.scaled(step)

    return apply


# On import, as model.compile(hvd.DistributedOptimizer(...)) looks up `compile` before it creates the optimizer.
install()
