"""Hooks that make Keras exchange gradients; tests/keras/test_hooks.py names the versions that it was tested with.

This file and `optimizers/slots.py`, which handles slots, are the only ones that depend on Keras's internals.

Keras is changed in seven places:

- `_backend_update_step` of an optimizer, where Keras has accumulated gradients and is about to apply them: the
  exchange happens here. `_clip_gradients` and `_apply_weight_decay`, which Keras calls just before, move behind it.
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

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from hvd_sparse.averaging.gradients import averages_gradients
from hvd_sparse.averaging.optimizer import averaged, is_averaged
from hvd_sparse.exchange import clipping, sender_side
from hvd_sparse.exchange.arguments import trains_alone
from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.keras import (
    local_optimizer,
    momentum,
    removed_arguments,
    steps_ahead,
    tensorflow_checkpoints,
    train_step,
    writing,
)
from hvd_sparse.optimizers import ahead, slots, tapes, without_slots
from hvd_sparse.servers.optimizer import is_served
from hvd_sparse.transport import first_rank
from hvd_sparse.transport.eager import making_variables

_EXCHANGE = "_hvd_sparse_exchange"
_HOOKED = "_hvd_sparse_hooked"


class Passes(NamedTuple):
    """How gradients of several backward passes are accumulated, by Horovod's rules; one pass leaves it to Keras.

    Attributes:
        number: the number of passes in one step.
        averaged: whether their sum is divided by that number.
    """

    number: int = 1
    averaged: bool = False


_KERASS_OWN = Passes()


def distribute(
    optimizer: keras.optimizers.Optimizer,
    exchange: GradientExchange,
    passes: Passes = _KERASS_OWN,
    again: Callable[[keras.optimizers.Optimizer], None] | None = None,
) -> None:
    """Makes an optimizer exchange its gradients from now on; the object, its variables and its config stay the same.

    Args:
        optimizer: an optimizer that is not distributed yet.
        exchange: averages its gradients.
        passes: how they are accumulated before.
        again: makes another optimizer distributed in the same way; `from_config` calls it.
    """
    # Not by setattr, which would add the residuals to checkpoints that one rank writes for all.
    vars(optimizer)[_EXCHANGE] = exchange
    if passes.number > 1:
        optimizer.gradient_accumulation_steps = passes.number
    optimizer.__class__ = _distributed_class(type(optimizer), passes, again)
    tensorflow_checkpoints.track(optimizer, exchange)
    if optimizer.built and exchange.takes_over:
        _hand_over(optimizer)


def exchange_of(optimizer: Any) -> GradientExchange | None:
    """The exchange of a distributed optimizer, also inside a loss-scaling one; None for any other."""
    inner = slots.without_loss_scaling(optimizer)
    return vars(inner).get(_EXCHANGE) if isinstance(inner, keras.optimizers.Optimizer) else None


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
    if not model.jit_compile or not _meets_others(model.optimizer):
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


class _Variables(list):
    """An optimizer's variables: a list, as in Keras, that can also be called, as in Horovod scripts."""

    def __call__(self) -> list[Any]:
        return self


def _distributed_class(base: Any, passes: Passes, again: Callable[[keras.optimizers.Optimizer], None] | None) -> type:
    """A subclass that exchanges gradients, under the same name.

    The `__class__` of its instances is the base class, so that whatever saves them (config, registered name, module)
    writes what can be loaded without this package.
    """
    factor = 1 if passes.averaged else passes.number  # Keras passes on the mean of the passes

    class Distributed(base):
        __class__ = property(lambda self: base)

        @classmethod
        def from_config(cls, config, *args, **kwargs):
            optimizer = base.from_config(config, *args, **kwargs)
            if again is not None:
                again(optimizer)
            return optimizer

        @property
        def iterations(self):
            return self._iterations if passes.number > 1 else base.iterations.fget(self)

        @property
        def variables(self):
            stand_in = without_slots.of(self)
            return _Variables([*base.variables.fget(self), *(stand_in.variables if stand_in else ())])

        @property
        def exchange(self) -> GradientExchange:
            """The exchange, which averages the gradients and holds their residuals."""
            return vars(self)[_EXCHANGE]

        def register_local_var(self, variable: Any) -> None:
            """Keeps a variable local, so its gradient is not exchanged, only divided by the number of ranks."""
            self.exchange.register_local_var(variable)

        def set_epoch(self, epoch: int) -> None:
            """Sets the epoch that begins, from 0; recipes that change by epoch need it outside `fit`."""
            self.exchange.set_epoch(epoch)

        def build(self, variables):
            if self.built:
                return  # what was handed over is handed over once
            # If the first step of a loop builds the optimizer, it has not looked ahead, so another trace must follow.
            with contextlib.nullcontext() if self.exchange.looks_ahead else making_variables():
                if not self.exchange.sends_updates:
                    base.build(self, variables)
                else:
                    slots.build_without(self, variables)
                if self.exchange.takes_over:
                    _hand_over(self)

        def apply(self, grads, trainable_variables=None):
            base.apply(self, ahead.to_apply(self, grads), trainable_variables)

        def _trackable_children(self, save_type="checkpoint", **options):  # as Keras's layers define it
            children = base._trackable_children(self, save_type, **options)
            return tensorflow_checkpoints.wanted(children, save_type)

        def save_own_variables(self, store):
            momentum.require_consolidated(self, self.exchange)
            stand_in = without_slots.of(self)
            if stand_in is None:
                base.save_own_variables(self, store)
            else:
                stand_in.save(self, store, self.exchange.step > 0)

        def load_own_variables(self, store):
            stand_in = without_slots.of(self)
            if stand_in is None:
                base.load_own_variables(self, store)
            else:
                stand_in.load(self, store)
            self.exchange.note_slots(slots.names(self).values())

        def set_weights(self, weights):
            stand_in = without_slots.of(self)
            if stand_in is None:
                base.set_weights(self, weights)
            else:
                stand_in.set_weights(self, weights)
            self.exchange.note_slots(slots.names(self).values())

        def _exchanged(self, gradients, variables, clip):
            """The means; the exchange gets all variables, as their names depend on the whole list."""
            found = {id(each): gradient for each, gradient in zip(variables, gradients, strict=True)}
            whole = self._trainable_variables
            means = self.exchange([found.get(id(each)) for each in whole], whole, clip)
            by_id = {id(each): mean for each, mean in zip(whole, means, strict=True)}
            return [by_id[id(each)] for each in variables]

        def _overwrite_variables_directly_with_gradients(self, grads, vars):
            return base._overwrite_variables_directly_with_gradients(
                self, self.exchange.with_largest(grads, vars), vars
            )

        def _clip_gradients(self, grads):
            return grads

        def _apply_weight_decay(self, variables):
            pass

        def _backend_update_step(self, grads, trainable_variables, learning_rate):
            def clip(gradients: list[tf.Tensor], factor: float) -> list[tf.Tensor]:
                with clipping.scaled_thresholds(self, factor):
                    return base._clip_gradients(self, gradients)

            def apply(pairs: list[tuple[Any, Any]], rate: Any) -> None:
                if pairs:
                    base._backend_update_step(self, [mean for mean, _ in pairs], [each for _, each in pairs], rate)

            summed = grads if factor == 1 else [gradient * factor for gradient in grads]
            means = self._exchanged(summed, trainable_variables, clip if clipping.clips(self) else None)
            exchanged = tf.nest.flatten(means, expand_composites=True)
            with tf.control_dependencies(exchanged):
                base._apply_weight_decay(self, trainable_variables)
                # The count is raised after all reads before it: this one waits until the step has succeeded.
                tf.convert_to_tensor(slots.calls(self))
            if not self.exchange.takes_over:
                base._backend_update_step(self, means, trainable_variables, learning_rate)
                return
            names, held = slots.names(self), slots.momenta(self)
            taken = sender_side.taking_over(self.exchange, trainable_variables, names)
            triples = list(zip(means, trainable_variables, taken, strict=True))
            if self.exchange.sends_updates:
                local_optimizer.lower(self, triples, learning_rate)
                return
            empty = [held[names[id(each)]] for _, each, over in triples if over and names[id(each)] in held]
            with tf.control_dependencies(exchanged), momentum.left_out(self, empty):
                apply([(mean, variable) for mean, variable, over in triples if over], learning_rate)
            apply([(mean, variable) for mean, variable, over in triples if not over], learning_rate)

    Distributed.__name__, Distributed.__qualname__ = base.__name__, base.__qualname__
    Distributed.__module__, Distributed.__doc__ = base.__module__, base.__doc__
    return Distributed


def _hand_over(optimizer: Any) -> None:
    """Lets the exchange run the step of an optimizer that has been built, or keep its momentum."""
    if optimizer.exchange.sends_updates:
        _begin_updates(optimizer)
    else:
        momentum.note_writes(optimizer, slots.momenta)


def _begin_updates(optimizer: Any) -> None:
    variables = list(optimizer._trainable_variables)
    local = optimizer.exchange.are_local(variables)
    without_slots.begin(optimizer, [each for each, own in zip(variables, local, strict=True) if own])
    tensorflow_checkpoints.built(optimizer)
    if optimizer.exchange.looks_ahead:
        replicated = [each for each, own in zip(variables, local, strict=True) if not own]
        looking = ahead.begin(optimizer, replicated, trains_alone(optimizer.exchange.aggregator))
        optimizer.exchange.joined = looking.joined
        optimizer.exchange.when_written(looking.forget)


def _meets_others(optimizer: Any) -> bool:
    """Whether an optimizer's step needs the other ranks, which XLA cannot compile."""
    return exchange_of(optimizer) is not None or meets_otherwise(optimizer)


def meets_otherwise(optimizer: Any) -> bool:
    """Whether an optimizer's step needs the other ranks, but for another reason than an exchange."""
    return any(meets(optimizer) for meets in (is_served, is_averaged, averages_gradients))


def _hooked_compile(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile(self, *args, **kwargs):
        if _meets_others(kwargs.get("optimizer", args[0] if args else None)):
            kwargs = removed_arguments.left_out(kwargs)
        asked = signature.bind(self, *args, **kwargs).arguments
        forced = asked.get("jit_compile") is True and not asked.get("run_eagerly")
        if forced and _meets_others(asked.get("optimizer")) and not train_step.is_compiled(self):
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
        optimizer = getattr(self, "optimizer", None)
        if is_averaged(optimizer):
            averaged(optimizer).require_mean()
        return original(self, *args, **kwargs)

    setattr(save, _HOOKED, True)
    return save


def _hooked_check_finite(original: Any) -> Any:
    @functools.wraps(original)
    def check_finite(self, grads):
        finite = original(self, ahead.landed(self, grads))
        exchange = exchange_of(self)
        return finite if exchange is None else exchange.everywhere(finite)

    setattr(check_finite, _HOOKED, True)
    return check_finite


def _hooked_apply(original: Any) -> Any:
    @functools.wraps(original)
    def apply(self, grads, trainable_variables=None):
        if averages_gradients(self.inner_optimizer):
            raise ValueError(
                "hvd.averaging.GradientAveraging does not support loss scaling: compile with "
                "auto_scale_loss=False, or use hvd.averaging.ModelAveraging."
            )
        if not is_averaged(self):
            original(self, grads, trainable_variables)
            return
        participant = averaged(self)
        with participant.postponed():
            original(self, grads, trainable_variables)
        participant.take_part()

    return apply


# On import, as model.compile(hvd.DistributedOptimizer(...)) looks up `compile` before it creates the optimizer.
install()
