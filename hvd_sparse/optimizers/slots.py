"""The slots of Keras's optimizers: where they are kept, and copies of optimizers that keep them elsewhere.

Only this file, `attached.py`, `copies.py` and `keras/hooks.py` depend on Keras's internals: `KERAS_INSIDES` in
tests/test_house_rules.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from hvd_sparse.optimizers import kinds, on_shards
from hvd_sparse.optimizers.variables import names_by_id, resource, unique_names

THRESHOLDS = ("clipnorm", "global_clipnorm", "clipvalue")
_SUMS, _AVERAGES = "_accumulated_gradients", "_model_variables_moving_average"
_BESIDE = (_SUMS, _AVERAGES)  # one variable for each of the model's, besides slots
# Lists of variables that are not slots.
_NO_SLOTS = ("_variables", "_trainable_variables", *_BESIDE)


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
    kind = kinds.of(optimizer)
    if kind is None or kind.velocities is None or not optimizer.built:
        return []
    return [velocity for velocity in getattr(optimizer, kind.velocities, ()) if velocity is not None]


def momenta(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """The slots of SGD's momentum or Adam's first moment, by the exchange's variable names; {} for others."""
    kind = kinds.of(optimizer)
    slots = getattr(optimizer, kind.momenta, []) if kind and kind.momenta else []
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
    return dict(zip(unique_names(optimizer._trainable_variables), built_for(optimizer), strict=True))


def built_for(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The variables of the model that an optimizer was built for, in its order."""
    return list(optimizer._trainable_variables)


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


def fits(store: Any, optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether Keras loads a file's values; it does not where an optimizer has more or fewer variables, and warns."""
    return len(store.keys()) == len(optimizer.variables)


def alive(reference: weakref.ref[keras.optimizers.Optimizer]) -> Any:
    """The optimizer that a reference leads to, for a part of it that its own step runs."""
    found = reference()
    assert found is not None, "it applies what its copies make"
    return found


def decays(optimizer: keras.optimizers.Optimizer, variable: Any) -> bool:
    """Whether an optimizer's weight decay, if it has any, acts on a variable."""
    return bool(optimizer._use_weight_decay(variable.value))


def strip(optimizer: keras.optimizers.Optimizer) -> None:
    """Removes an optimizer's slots."""
    for attribute, held in by_name(optimizer).items():
        for slot in held.values():
            optimizer._untrack_variable(slot)
        setattr(optimizer, attribute, [])


def step(optimizer: keras.optimizers.Optimizer, gradient: Any, variable: Any, learning_rate: Any) -> None:
    """Applies a gradient to the variable that an optimizer was built for."""
    optimizer._backend_update_step([gradient], [variable], learning_rate)
