"""The slots of an optimizer for one shard, and the optimizer's step there, which writes nothing."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.compression.updates import LocalSlots
from hvd_sparse.exchange import on_shards, slots
from hvd_sparse.exchange.gradients import resource
from hvd_sparse.exchange.on_shards import Piece
from hvd_sparse.spec import Spec

# Those that treat each element alone, whatever the weights are.
ELEMENT_WISE = ("SGD", "RMSprop", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "Lion")


class TwinSlots(LocalSlots):
    """The slots of an optimizer's twin for a shard, [size] float32 each, and its step, element by element."""

    def __init__(self, spec: Spec, optimizer: keras.optimizers.Optimizer, steps: tf.Variable | None = None):
        """Takes the vector, the optimizer, and how many steps were taken, where that is not `iterations`."""
        self._optimizer = weakref.ref(optimizer)
        self._twin = slots.twin(optimizer, _Moved([spec.size], spec.name), steps)
        self._variables = {name: held[spec.name] for name, held in slots.by_name(self._twin).items()}
        begins = {name: float(slot.value.numpy()[0]) for name, slot in self._variables.items() if spec.size}
        super().__init__(spec, {name: slot.value for name, slot in self._variables.items()}, begins)

    def update(self, gradient, ahead):
        optimizer = self._alive()
        slots.follow(self._twin, optimizer)
        moved = _Moved([self.spec.size], self.spec.name)
        with keras.StatelessScope(initialize_variables=False) as scope:
            self._twin.update_step(gradient, moved, optimizer.learning_rate)
            new = {name: scope.get_current_value(slot) for name, slot in self._variables.items()}
        written = [(self.slots[name], value) for name, value in new.items() if value is not None]
        return moved.lowered(), written

    def _alive(self) -> Any:
        optimizer = self._optimizer()
        assert optimizer is not None  # it applies what this gives
        return optimizer


class PieceSlots(TwinSlots):
    """The slots of an optimizer that looks at whole variables, of which this shard has pieces.

    Where the vector is cut into shards, the ranks of the node add up what each piece gives, in 2 (n - 1) steps and
    32 (n - 1) / n bytes for each variable of the vector. A rank whose shard is empty has nothing to give and takes
    part all the same.
    """

    def update(self, gradient, ahead):
        optimizer = self._alive()
        pieces = self._pieces(optimizer, gradient, ahead)
        own, begun = optimizer.shard_sums(pieces)
        moved = optimizer.shard_step(pieces, begun, self._over_node(own), optimizer.learning_rate)
        lowered = tf.concat([lowered for lowered, _ in moved], 0)
        return lowered, [(slot, tf.concat([new[name] for _, new in moved], 0)) for name, slot in self.slots.items()]

    def attend(self, parts):
        # Made of the parts, as a collective that is given a constant would run when the graph is optimised.
        nothing = tf.zeros([len(self.spec.segments), 2], tf.float64) + tf.cast(tf.size(parts), tf.float64)
        return parts + tf.cast(tf.reduce_sum(self._added_up(nothing)), parts.dtype)

    def _pieces(self, optimizer: Any, gradient: tf.Tensor, ahead: tf.Tensor | None) -> list[Piece]:
        variables = slots.variables(optimizer)
        held = {name: slot.read_value() for name, slot in self.slots.items()}
        pieces = []
        for number, begin, start, size in self.spec.places:
            variable, here = variables[self.spec.segments[number].name], slice(begin, begin + size)
            flat = tf.reshape(tf.convert_to_tensor(resource(variable)), [-1])
            weight = tf.cast(flat[start : start + size], tf.float32)
            own = weight if ahead is None else weight - ahead[here]
            pieces.append(Piece(variable, own, gradient[here], {name: slot[here] for name, slot in held.items()}))
        return pieces

    def _over_node(self, own: tf.Tensor) -> tf.Tensor:
        """What all pieces of a variable have given, for each piece of this shard, float64 [pieces, 2]."""
        if self.spec.holders is None:
            return own
        numbers = [place.segment for place in self.spec.places]
        every = tf.scatter_nd([[number] for number in numbers], own, [len(self.spec.segments), 2])
        return tf.gather(self._added_up(every), numbers)

    def _added_up(self, sums: tf.Tensor) -> tf.Tensor:
        """The sum over the ranks of the node, float64 [segments, 2]."""
        holders = self.spec.holders
        return sums if holders is None else holders.allreduce(sums, "sum", f"{self.spec.name}.sums_of_variables")


def made(spec: Spec, optimizer: keras.optimizers.Optimizer) -> TwinSlots:
    """The slots of an optimizer for a vector, or a shard of one."""
    kind = TwinSlots if on_shards.offered(optimizer) is None else PieceSlots
    return kind(spec, optimizer)


def is_element_wise(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether the step itself is one of Keras's that treat each element alone; a subclass may have another step."""
    home = next(cls for cls in type(optimizer).__mro__ if "update_step" in vars(cls))
    return home.__module__.partition(".")[0] == "keras" and home.__name__ in ELEMENT_WISE


class _Moved:
    """Stands for a flat variable that an optimizer moves, and knows by how much."""

    dtype = "float32"

    def __init__(self, shape: Sequence[int], name: str):
        self.shape, self.name = shape, name
        self._lowered: list[tf.Tensor] = []

    def assign_add(self, value: Any) -> None:
        """The variable is moved up."""
        self._lowered.append(-tf.convert_to_tensor(value))  # now, as it may be a slot that is about to change

    def assign_sub(self, value: Any) -> None:
        """The variable is moved down."""
        self._lowered.append(tf.convert_to_tensor(value))

    def lowered(self) -> tf.Tensor:
        """By how much, [size] float32."""
        return tf.add_n(self._lowered)
