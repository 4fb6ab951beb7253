"""The slots of Keras's optimizers: where they are kept, and copies of optimizers that keep them elsewhere.

This file and `keras/hooks.py` are the only ones that depend on Keras's internals.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.optimizers import on_shards
from hvd_sparse.optimizers.variables import names_by_id, resource, unique_names

# By class, the attribute with the momentum, in units of gradients up to a common factor.
_MOMENTA = {"SGD": "momentums", "Adam": "_momentums", "Adamax": "_m", "Lamb": "_momentums", "LAMB": "first_moments"}
THRESHOLDS = ("clipnorm", "global_clipnorm", "clipvalue")
_SUMS, _AVERAGES = "_accumulated_gradients", "_model_variables_moving_average"
_BESIDE = (_SUMS, _AVERAGES)  # one variable for each of the model's, besides slots
# Lists of variables that are not slots.
_NO_SLOTS = ("_variables", "_trainable_variables", *_BESIDE)
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


def of_variables(optimizer: keras.optimizers.Optimizer, variables: Iterable[Any]) -> list[Any]:
    """The optimizer's variables that belong to these variables of the model, such as their momentum."""
    wanted = {id(resource(variable)) for variable in variables}
    each_its = [*lists(optimizer).values(), *(getattr(optimizer, name, []) for name in _BESIDE)]
    return [
        held
        for listed in each_its
        for variable, held in zip(optimizer._trainable_variables, listed, strict=False)
        if held is not None and id(resource(variable)) in wanted
    ]


def sums(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The sums of the gradients of several passes between two updates; [] if the optimizer does not accumulate."""
    return [each for each in getattr(optimizer, _SUMS, []) if each is not None]


def without_loss_scaling(optimizer: Any) -> Any:
    """The optimizer inside a loss-scaling one; any other as it is."""
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return optimizer.inner_optimizer if scales else optimizer


def calls(optimizer: keras.optimizers.Optimizer) -> Any:
    """The variable that counts calls of `apply`; `gradient_accumulation_steps` calls count as one of `iterations`."""
    return without_loss_scaling(optimizer)._iterations


def velocities(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The variables in which SGD and RMSprop with momentum accumulate past steps, including the learning rate."""
    optimizer = without_loss_scaling(optimizer)
    if isinstance(optimizer, keras.optimizers.SGD) and optimizer.built:
        return [velocity for velocity in getattr(optimizer, "momentums", ()) if velocity is not None]
    if isinstance(optimizer, keras.optimizers.RMSprop) and optimizer.built:
        return [velocity for velocity in getattr(optimizer, "_momentums", ()) if velocity is not None]
    return []


def momenta(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """The slots of SGD's momentum or Adam's first moment, by the exchange's variable names; {} for others."""
    attribute = next((_MOMENTA[cls.__name__] for cls in type(optimizer).__mro__ if cls.__name__ in _MOMENTA), None)
    slots = getattr(optimizer, attribute, []) if attribute else []
    names = unique_names(optimizer._trainable_variables) if slots else []
    return {name: slot for name, slot in zip(names, slots, strict=True) if slot is not None}


def by_name(optimizer: keras.optimizers.Optimizer) -> dict[str, dict[str, Any]]:
    """All slots of an optimizer, by the name of its attribute and by the exchange's variable names."""
    names = unique_names(optimizer._trainable_variables)
    return {
        attribute: {name: slot for name, slot in zip(names, held, strict=True) if slot is not None}
        for attribute, held in lists(optimizer).items()
    }


def lists(optimizer: keras.optimizers.Optimizer) -> dict[str, list[Any]]:
    """All slots of an optimizer, one per variable, by the name of its attribute; None where a variable has none."""
    variables = optimizer._trainable_variables
    return {
        attribute: value
        for attribute, value in vars(optimizer).items()
        if attribute not in _NO_SLOTS and isinstance(value, list) and 0 < len(value) == len(variables)
        if all(each is None or isinstance(each, keras.Variable) for each in value)
        if any(each is not None for each in value)
    }


def variables(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """The variables that an optimizer was built for, by the exchange's variable names."""
    return dict(zip(unique_names(optimizer._trainable_variables), optimizer._trainable_variables, strict=True))


def floats(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The floating-point variables that an optimizer uses in its steps, except the learning rate."""
    optimizer = without_loss_scaling(optimizer)
    held = [each for each in optimizer.variables if "float" in str(each.dtype)]
    return [each for each in held if each is not optimizer._learning_rate]


def build_without(optimizer: Any, variables: Sequence[Any]) -> None:
    """Builds an optimizer for its variables without creating slots."""
    if on_shards.offered(optimizer) is None:
        keras.optimizers.Optimizer.build(optimizer, variables)
    else:
        optimizer.build_without_slots(variables)


def names(optimizer: keras.optimizers.Optimizer) -> dict[int, str]:
    """The exchange's names of an optimizer's variables, by their `id`."""
    return names_by_id(optimizer._trainable_variables)


def alive(reference: weakref.ref[keras.optimizers.Optimizer]) -> Any:
    """The optimizer that a reference leads to, for a part of it that its own step runs."""
    found = reference()
    assert found is not None, "it applies what its copies make"
    return found


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


def strip(optimizer: keras.optimizers.Optimizer) -> None:
    """Removes an optimizer's slots."""
    for attribute, held in by_name(optimizer).items():
        for slot in held.values():
            optimizer._untrack_variable(slot)
        setattr(optimizer, attribute, [])


def step(optimizer: keras.optimizers.Optimizer, gradient: Any, variable: Any, learning_rate: Any) -> None:
    """Applies a gradient to the variable that an optimizer was built for."""
    optimizer._backend_update_step([gradient], [variable], learning_rate)


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
