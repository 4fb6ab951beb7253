"""How variables are lowered and restored, and what holds their values meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_sparse.optimizers.graph_writes import Watched
from hvd_sparse.optimizers.variables import resource


class Part(NamedTuple):
    """A variable that can be lowered.

    Attributes:
        variable: a Keras or TensorFlow variable.
        held: keeps its value while it is lowered, for `InVariables`.
        offset: what is subtracted.
        watched: notices writes to it.
    """

    variable: Any
    held: tf.Variable
    offset: tf.Variable
    watched: Watched

    @property
    def value(self) -> tf.Tensor:
        """What it holds now."""
        return tf.convert_to_tensor(self.variable)


class InVariables:
    """Holds the shared weights in variables of their own, as a step that fails takes its tensors along."""

    def __init__(self, parts: Sequence[Part], lowered: tf.Variable):
        """Takes the variables, and the variable that says whether they are lowered."""
        self._parts, self._lowered = parts, lowered

    def lower(self) -> None:
        """Subtracts the offsets."""
        values = [part.value for part in self._parts]
        pairs = zip(self._parts, values, strict=True)
        with _after([part.held.assign(value, read_value=False) for part, value in pairs]):
            noted = self._lowered.assign(True, read_value=False)
        with _after([noted]):
            for part, value in zip(self._parts, values, strict=True):
                resource(part.variable).assign(value - part.offset)  # a new buffer, so that held is not copied

    def shared(self, part: Part) -> tf.Tensor:
        """The value that a lowered variable had."""
        return part.held.read_value()

    def restore(self, parts: Sequence[Part]) -> list[Any]:
        """Gives these variables their values back; what follows has to depend on the result."""
        lowered = [part.value for part in parts]
        with _after([resource(part.variable).assign(part.held, read_value=False) for part in parts]):
            # Otherwise the same memory would be held, and the update of the variable would copy all of it.
            pairs = zip(parts, lowered, strict=True)
            released = [part.held.assign(value, read_value=False) for part, value in pairs]
        with _after(released):
            return [self._lowered.assign(False, read_value=False)]


class InTensors:
    """Holds the shared weights in tensors: XLA writes no variable that has its first value again at the end."""

    def __init__(self, parts: Sequence[Part]):
        self._parts = parts
        self._values: dict[int, tf.Tensor] = {}

    def lower(self) -> None:
        """Subtracts the offsets."""
        for part in self._parts:
            self._values[id(part.variable)] = part.value
            resource(part.variable).assign(part.value - part.offset)

    def shared(self, part: Part) -> tf.Tensor:
        """The value that a lowered variable had."""
        return self._values[id(part.variable)]

    def restore(self, parts: Sequence[Part]) -> list[Any]:
        """Gives these variables their values back; what follows has to depend on the result."""
        return [resource(part.variable).assign(self.shared(part), read_value=False) for part in parts]


def part_of(variable: Any, wrote: Callable[[Any], None]) -> Part:
    """A variable with an offset of zero; `wrote` is called with it before a write that is noticed."""
    return Part(variable, _zeros_like(variable, "held"), _zeros_like(variable, "ahead"), Watched(variable, wrote))


def _zeros_like(variable: Any, name: str) -> tf.Variable:
    zeros = tf.zeros(variable.shape, variable.dtype)
    return tf.Variable(zeros, trainable=False, name=f"{variable.name}_{name}")


def _after(operations: Sequence[Any]) -> Any:
    """A context that runs after operations of a graph; in eager code there are none to wait for."""
    return tf.control_dependencies([each for each in operations if each is not None])
