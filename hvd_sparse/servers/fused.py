"""The steps of Keras's optimizers as native passes: one read and write of memory, in place, bit for bit as in Keras.

Keras's eager Adam step reads and writes memory about fifteen times, at least once for each operation. The native one
(ops/servers/apply.h) does the same operations in the same order, each rounded to float32. Its numbers are computed here
as in Keras: 1 - beta in Python's doubles, powers and Adam's rate in float32. A lazy step does the same for some
elements only: the others, and their slots, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.optimizers import slots
from hvd_sparse.servers.gathering import Touched

Step: TypeAlias = Callable[[Sequence[tf.Tensor], Sequence[Any]], None]
LazyStep: TypeAlias = Callable[[Sequence[Touched], Sequence[Any]], None]

# Settings that ask for more than the step itself, each with the values that do not.
_OUTSIDE = {
    "clipnorm": (None,),
    "clipvalue": (None,),
    "global_clipnorm": (None,),
    "loss_scale_factor": (None,),
    "gradient_accumulation_steps": (None, 0),
    "use_ema": (False,),
    "amsgrad": (False,),
}
# A subclass may override which variables decay, and nothing else.
_OWN = {"_use_weight_decay"}


class _Rule(NamedTuple):
    """A step as in ops/servers/apply.h: its name, the optimizer's attributes that hold its slots, and its numbers."""

    name: str
    slots: list[str]
    numbers: list[Any]


def step_of(optimizer: keras.optimizers.Optimizer) -> Step | None:
    """Returns the native step that does what an optimizer's `apply` does, to the bit, including weight decay.

    Args:
        optimizer: one that is built.

    Returns:
        A function of dense float32 gradients on the CPU and of all variables that the optimizer was built for, in that
        order, float32 and without constraints. It reads settings and learning rate anew in each step, eagerly. None if
        there is no native step: for classes other than SGD, Adam, AdamW, Adagrad and RMSprop, for subclasses that
        override more than which variables decay, and for settings that do more than the step (amsgrad, clipping,
        averages of variables, accumulation of gradients, a scaled loss).
    """
    if not _has_step(optimizer):
        return None

    def step(gradients: Sequence[tf.Tensor], variables: Sequence[Any]) -> None:
        for gradient, arguments in zip(gradients, _arguments(optimizer, variables), strict=True):
            ops.library().hvd_servers_apply(gradient=gradient, **arguments)
        optimizer.iterations.value.assign_add(1, read_value=False)

    return step


def lazy_step_of(optimizer: keras.optimizers.Optimizer) -> LazyStep | None:
    """Returns an optimizer's lazy step: that of `step_of`, only for the elements that have a gradient.

    Args:
        optimizer: one that is built.

    Returns:
        A function of the gradients' entries and of all variables, flat, as the step of `step_of`; None if that is None.
    """
    if not _has_step(optimizer):
        return None

    def step(gradients: Sequence[Touched], variables: Sequence[Any]) -> None:
        for gradient, arguments in zip(gradients, _arguments(optimizer, variables), strict=True):
            ops.library().hvd_servers_apply_places(gradient=gradient.values, places=gradient.indices, **arguments)
        optimizer.iterations.value.assign_add(1, read_value=False)

    return step


def _has_step(optimizer: keras.optimizers.Optimizer) -> bool:
    has_rule = _home(type(optimizer)) in _RULES
    return has_rule and all(getattr(optimizer, name, free[0]) in free for name, free in _OUTSIDE.items())


def _arguments(optimizer: Any, variables: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The arguments of each variable's native step, except its gradient."""
    rate = np.float32(optimizer.learning_rate.numpy())
    name, attributes, numbers = _RULES[_home(type(optimizer))](optimizer, rate)
    held = [getattr(optimizer, attribute) for attribute in attributes]
    for variable, *own in zip(variables, *held, strict=True):
        decays = optimizer.weight_decay is not None and slots.decays(optimizer, variable)
        yield {
            "weights": variable.value.handle,
            "slots": [slot.value.handle for slot in own],
            "numbers": [float(number) for number in numbers],
            "decay": float(optimizer.weight_decay) if decays else 0.0,
            "decay_rate": float(rate),
            "optimizer": name,
            "decays": decays,
        }


def _home(cls: type) -> type:
    """The class whose step is run: the optimizer's own, or its base if it only overrides which variables decay."""
    own = {name for name in vars(cls) if not name.startswith("__")}
    return cls.__base__ if own == _OWN and cls.__base__ is not None else cls


# Numbers are Python's and NumPy's: one TensorFlow operation takes as long as a step on thousands of elements, and a
# NumPy number takes five times as long to pass to it as a Python one. Powers are TensorFlow's, to get the same bits.


def _sgd(optimizer: Any, rate: np.float32) -> _Rule:
    if optimizer.momentum == 0:
        return _Rule("SGD", [], [rate])
    return _Rule("Nesterov" if optimizer.nesterov else "Momentum", ["momentums"], [rate, optimizer.momentum])


def _adam(optimizer: Any, rate: np.float32) -> _Rule:
    count = optimizer.iterations.value
    steps = tf.raw_ops.ReadVariableOp(resource=count.handle, dtype=count.dtype).numpy()
    one, number = np.float32(1), np.float32(steps + 1)
    first, second = (
        tf.raw_ops.Pow(x=float(beta), y=float(number)).numpy() for beta in (optimizer.beta_1, optimizer.beta_2)
    )
    alpha = rate * np.sqrt(one - second) / (one - first)
    numbers = [alpha, 1 - optimizer.beta_1, 1 - optimizer.beta_2, optimizer.epsilon]
    return _Rule("Adam", ["_momentums", "_velocities"], numbers)


def _adagrad(optimizer: Any, rate: np.float32) -> _Rule:
    return _Rule("Adagrad", ["_accumulators"], [rate, optimizer.epsilon])


def _rmsprop(optimizer: Any, rate: np.float32) -> _Rule:
    rule = _Rule("RMSprop", ["_velocities"], [rate, optimizer.epsilon, optimizer.rho, 1 - optimizer.rho])
    if optimizer.centered:
        rule = _Rule(f"{rule.name}Centered", [*rule.slots, "_average_gradients"], rule.numbers)
    if optimizer.momentum > 0:
        rule = _Rule(f"{rule.name}Momentum", [*rule.slots, "_momentums"], [*rule.numbers, optimizer.momentum])
    return rule


_RULES: dict[type, Callable[[Any, np.float32], _Rule]] = {
    keras.optimizers.SGD: _sgd,
    keras.optimizers.Adam: _adam,
    keras.optimizers.AdamW: _adam,
    keras.optimizers.Adagrad: _adagrad,
    keras.optimizers.RMSprop: _rmsprop,
}
