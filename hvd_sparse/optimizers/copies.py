"""Optimizers that are made out of one of Keras's, with its class and settings, and slots of their own."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.optimizers import on_shards
from hvd_sparse.optimizers.slots import THRESHOLDS, alive

# Settings that act on gradients or weights outside the step itself.
_OUTSIDE = (
    *THRESHOLDS,
    "learning_rate",
    "weight_decay",
    "use_ema",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)
# Those of them that a server leaves to its clients, or to no rank.
_OF_CLIENTS = (*THRESHOLDS, "gradient_accumulation_steps", "loss_scale_factor")


def twin(
    optimizer: keras.optimizers.Optimizer, stand_ins: Sequence[Any], steps: tf.Variable | None = None
) -> keras.optimizers.Optimizer:
    """An optimizer of the same class and settings, with slots of its own, that writes by `assign` of variables.

    So its `update_step` can run in a `keras.StatelessScope`, where it writes nothing.

    Args:
        optimizer: one of Keras's, or of `on_shards.py`, whose twin is used only for its slots.
        stand_ins: stand for variables: have `shape`, `dtype`, a unique `name`, `assign_add` and `assign_sub`.
        steps: the number of steps taken, [] int64; None uses that of the optimizer, which has to stay alive.
    """
    base: Any = optimizer.__class__
    reference = weakref.ref(optimizer)
    taken: collections.Counter[str] = collections.Counter()

    class Twin(base):
        iterations = property(lambda self: alive(reference).iterations if steps is None else steps)

        def _var_key(self, variable):
            return variable.name

        def add_variable_from_reference(self, reference_variable, name=None, initializer="zeros"):
            full_name = f"{reference_variable.name}_{name}"
            return self.add_variable(reference_variable.shape, initializer, reference_variable.dtype, name=full_name)

        def add_variable(self, *args, name, **options):
            taken[name] += 1  # Adafactor gives one name to two slots, and a saved state has names
            return base.add_variable(self, *args, name=f"{name}_{taken[name]}" if taken[name] > 1 else name, **options)

        def assign(self, variable, value):
            variable.assign(value)

        def assign_add(self, variable, value):
            variable.assign_add(value)

        def assign_sub(self, variable, value):
            variable.assign_sub(value)

    made = Twin.from_config(_of_the_step(optimizer))
    made.build(list(stand_ins))
    return made


def apart(optimizer: keras.optimizers.Optimizer, variable: Any) -> keras.optimizers.Optimizer:
    """An optimizer of the same class and settings for one variable; it shares the optimizer's number of steps."""
    base: Any = optimizer.__class__
    reference = weakref.ref(optimizer)

    class Apart(base):
        iterations = property(lambda self: alive(reference).iterations)

    made = Apart.from_config(_of_the_step(optimizer))
    made.build([variable])
    return made


def whole(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """An optimizer of the same class and settings with all slots, in host memory."""
    base: Any = optimizer.__class__
    with tf.init_scope(), tf.device("CPU:0"):
        made = base.from_config(_settings(optimizer))
        made.build(optimizer._trainable_variables)
    return made


def served(optimizer: keras.optimizers.Optimizer, decayed: Sequence[Any]) -> keras.optimizers.Optimizer:
    """An optimizer of the same class and settings for a server's part of the variables.

    Args:
        optimizer: the clients'.
        decayed: the variables whose weights decay. The learning rate comes with each gradient.
    """
    base: Any = optimizer.__class__
    keys = {optimizer._var_key(variable) for variable in decayed}

    class Served(base):
        def _use_weight_decay(self, variable):
            return self._var_key(variable) in keys

    config = {key: value for key, value in _settings(optimizer).items() if key not in _OF_CLIENTS}
    return Served.from_config({**config, "learning_rate": 0.0})


def subtraction(optimizer: Any) -> keras.optimizers.Optimizer:
    """An optimizer that subtracts what it is given from the weights, and decays them as another one does."""

    class Subtraction(keras.optimizers.Optimizer):
        def _use_weight_decay(self, variable):
            return optimizer._use_weight_decay(variable)

        def update_step(self, gradient, variable, learning_rate):
            self.assign_sub(variable, gradient)

    return Subtraction(learning_rate=0.0, weight_decay=optimizer.weight_decay)


def _of_the_step(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """The settings that the step itself uses."""
    offered = on_shards.offered(optimizer)
    own = {} if offered is None else offered.settings_alone()
    return {**{key: value for key, value in _settings(optimizer).items() if key not in _OUTSIDE}, **own}


def _settings(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """An optimizer's config with a schedule object as it is, as it need not be serializable here."""
    rate = optimizer._learning_rate
    vars(optimizer)["_learning_rate"] = 0.0
    try:
        config = optimizer.get_config()
    finally:
        vars(optimizer)["_learning_rate"] = rate
    return {**config, "learning_rate": 0.0 if isinstance(rate, keras.Variable) else rate}


def follow(twin: keras.optimizers.Optimizer, optimizer: keras.optimizers.Optimizer) -> None:
    """Copies to a twin the settings that a callback may have changed, such as beta_1."""
    for key, value in list(vars(twin).items()):
        if isinstance(value, float) and key not in _OUTSIDE:
            setattr(twin, key, getattr(optimizer, key))
