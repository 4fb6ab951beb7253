"""Looking ahead: gradients are computed at the weights that a node would have if its unsent updates were applied.

A recipe of updates with `ahead` evaluates, saves and shares the replicated weights w. But from the beginning of a step
until its gradients are computed, the variables hold w minus what this rank's node has not sent yet. Then they get back
exactly w, and the update is applied to that. If a step fails in between, they get back w, too. With sharded servers, w
is the rank's copy of the parameters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.exchange import slots
from hvd_sparse.optimizers.variables import resource
from hvd_sparse.transport import first_rank

_AHEAD = "_hvd_sparse_ahead"


class Ahead:
    """Subtracts offsets from variables while gradients are computed.

    Attributes:
        offsets: what is subtracted, in each variable's shape and dtype.
    """

    def __init__(self, variables: Sequence[Any]):
        self._variables = list(variables)
        self._in_trace = False
        self._told = False
        with tf.init_scope():
            self.offsets = [_zeros_like(variable, "ahead") for variable in self._variables]
            self._held = [_zeros_like(variable, "held") for variable in self._variables]
            self._lowered = tf.Variable(False, trainable=False, name="looking_ahead")

    def lower(self) -> None:
        """Subtracts the offsets from the variables."""
        self._in_trace, self._told = not tf.executing_eagerly(), True
        values = [tf.convert_to_tensor(each) for each in self._variables]
        with _after([held.assign(value, read_value=False) for held, value in zip(self._held, values, strict=True)]):
            noted = self._lowered.assign(True, read_value=False)
        with _after([noted]):
            for variable, value, offset in zip(self._variables, values, self.offsets, strict=True):
                resource(variable).assign(value - offset)  # a new buffer, so that the held value is not copied

    def land(self) -> list[Any]:
        """Restores the variables if they were lowered; what follows has to depend on the result."""
        if tf.executing_eagerly():
            self.recover()
            return []
        if self._in_trace:
            self._in_trace = False
            return self._give_back()
        return [tf.cond(self._lowered, self._given_back, lambda: False)]  # its caller may have lowered them

    def leave(self) -> None:
        """Restores the variables after a step whose gradients were not applied."""
        if self._in_trace or tf.executing_eagerly():
            self.land()

    def recover(self) -> None:
        """Restores the variables if that was not done, as after a failed step; call it in eager code."""
        self._in_trace = False
        if self._lowered.numpy():
            self._give_back()

    def warn_if_never_lowered(self) -> None:
        """Warns once if gradients arrive that were not computed ahead."""
        if not self._told:
            first_rank.warn(
                "The recipe looks ahead, but gradients were computed at the weights that all ranks share: compute them "
                "in `with hvd.looking_ahead(optimizer)`, as model.fit does, or accuracy suffers."
            )
        self._told = True

    def move(self, unsent: Mapping[int, tf.Tensor]) -> None:
        """Sets the offsets to what is not sent yet, by the `id` of the variable."""
        for variable, offset in zip(self._variables, self.offsets, strict=True):
            if id(variable) in unsent:
                offset.assign(tf.cast(unsent[id(variable)], offset.dtype))

    def forget(self) -> None:
        """Sets the offsets to zero, after the variables were given other weights."""
        for offset in self.offsets:
            offset.assign(tf.zeros_like(offset))

    def _given_back(self) -> bool:
        self._give_back()
        return True

    def _give_back(self) -> list[Any]:
        lowered = [tf.convert_to_tensor(each) for each in self._variables]
        pairs = zip(self._variables, self._held, strict=True)
        with _after([resource(variable).assign(held, read_value=False) for variable, held in pairs]):
            # Otherwise the same memory would be held, and the update of the variable would copy all of it.
            released = [held.assign(each, read_value=False) for held, each in zip(self._held, lowered, strict=True)]
        with _after(released):
            return [self._lowered.assign(False, read_value=False)]


def _zeros_like(variable: Any, name: str) -> tf.Variable:
    zeros = tf.zeros(variable.shape, variable.dtype)
    return tf.Variable(zeros, trainable=False, name=f"{variable.name}_{name}")


def _after(operations: Sequence[Any]) -> Any:
    """A context that runs after operations of a graph; in eager code there are none to wait for."""
    return tf.control_dependencies([each for each in operations if each is not None])


def _same(gradient: Any) -> Any:
    if gradient is None:
        return None
    return tf.nest.map_structure(tf.identity, gradient, expand_composites=True)


def begin(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> Ahead:
    """Makes an optimizer look ahead from now on, with these variables."""
    made = vars(optimizer)[_AHEAD] = Ahead(variables)
    return made


def of(optimizer: Any) -> Ahead | None:
    """The `Ahead` of an optimizer, also inside a loss-scaling one; None if it does not look ahead."""
    inner = slots.without_loss_scaling(optimizer)
    return vars(inner).get(_AHEAD) if isinstance(inner, keras.optimizers.Optimizer) else None


def landed(optimizer: Any, gradients: Sequence[Any]) -> list[Any]:
    """The gradients, after the variables are restored to the values to which these are to be applied."""
    found = of(optimizer)
    if found is None:
        return list(gradients)
    found.warn_if_never_lowered()
    operations = found.land()
    if not operations:
        return list(gradients)
    with _after(operations):
        return [_same(gradient) for gradient in gradients]


def offsets(optimizer: Any) -> list[tf.Variable]:
    """The offsets, which differ between nodes, for checkpoints."""
    found = of(optimizer)
    return [] if found is None else found.offsets


@contextlib.contextmanager
def looking_ahead(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Context in which gradients are computed at this rank's node's own weights, for recipes with `ahead`.

    The variables hold these weights until the optimizer gets the gradients. `fit` does this itself; in your own loop:

        with hvd.looking_ahead(optimizer), tf.GradientTape() as tape:
            loss = ...
        optimizer.apply(tape.gradient(loss, variables), variables)

    If the recipe does not look ahead, nothing happens.

    Args:
        optimizer: a distributed optimizer, built on the model's variables.
    """
    found = of(optimizer)
    if found is None:
        yield
        return
    found.lower()
    try:
        yield
    finally:
        found.leave()
