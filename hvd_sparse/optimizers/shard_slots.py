"""The slots of an optimizer for one shard, and its step on the shard, which writes nothing."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.compression.updates import LocalSlots
from hvd_sparse.optimizers import copies, on_shards, slots
from hvd_sparse.optimizers.on_shards import Piece
from hvd_sparse.optimizers.variables import resource
from hvd_sparse.spec import Spec


class TwinSlots(LocalSlots):
    """The slots of an optimizer's twin for a shard, [size] float32 each, and its element-wise step."""

    def __init__(self, spec: Spec, optimizer: keras.optimizers.Optimizer, steps: tf.Variable | None = None):
        """Takes the vector, the optimizer, and the number of steps taken, if that is not `iterations`."""
        self._optimizer = weakref.ref(optimizer)
        self._twin = copies.twin(optimizer, [Moved([spec.size], spec.name)], steps)
        self._variables = {name: held[spec.name] for name, held in slots.by_name(self._twin).items()}
        begins = {name: float(slot.value.numpy()[0]) for name, slot in self._variables.items() if spec.size}
        super().__init__(spec, {name: slot.value for name, slot in self._variables.items()}, begins)
        self.normalizes = on_shards.offered(optimizer) is not None or not isinstance(optimizer, keras.optimizers.SGD)

    def update(self, gradient, ahead):
        optimizer = slots.alive(self._optimizer)
        copies.follow(self._twin, optimizer)
        moved = Moved([self.spec.size], self.spec.name)
        with keras.StatelessScope(initialize_variables=False) as scope:
            self._twin.update_step(gradient, moved, optimizer.learning_rate)
            new = {name: scope.get_current_value(slot) for name, slot in self._variables.items()}
        written = [(self.slots[name], value) for name, value in new.items() if value is not None]
        return moved.lowered(), written


class PieceSlots(TwinSlots):
    """The slots of an optimizer that needs whole variables, of which this shard has pieces.

    If the vector is cut into shards, the ranks of the node add up the sums of the pieces, in 2 (n - 1) steps and
    32 (n - 1) / n bytes per variable of the vector. A rank with an empty shard contributes zeros and takes part, too.
    """

    def update(self, gradient, ahead):
        optimizer = slots.alive(self._optimizer)
        pieces = self._pieces(optimizer, gradient, ahead)
        own, begun = optimizer.shard_sums(pieces)
        moved = optimizer.shard_step(pieces, begun, self._over_node(own), optimizer.learning_rate)
        lowered = tf.concat([lowered for lowered, _ in moved], 0)
        return lowered, [(slot, tf.concat([new[name] for _, new in moved], 0)) for name, slot in self.slots.items()]

    def attend(self, parts, ahead):
        # Computed from the parts, as a collective with a constant input would run when the graph is optimized.
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
        """For each piece of this shard, the sum over all pieces of its variable, float64 [pieces, 2]."""
        if self.spec.holders is None:
            return own
        numbers = [place.segment for place in self.spec.places]
        every = tf.scatter_nd([[number] for number in numbers], own, [len(self.spec.segments), 2])
        return tf.gather(self._added_up(every), numbers)

    def _added_up(self, sums: tf.Tensor) -> tf.Tensor:
        """The sum over the ranks of the node, float64 [segments, 2]."""
        holders = self.spec.holders
        return sums if holders is None else holders.allreduce(sums, "sum", f"{self.spec.name}.sums_of_variables")


class Moved:
    """Stands for a variable that an optimizer moves, and records by how much."""

    dtype = "float32"

    def __init__(self, shape: Sequence[int], name: str, path: str = "", value: tf.Tensor | None = None):
        self.shape, self.name, self.path = shape, name, path or name
        self._value = value
        self._lowered: list[tf.Tensor] = []

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        """Its value, for TensorFlow."""
        return tf.convert_to_tensor(self._value, dtype)

    def assign_add(self, value: Any) -> None:
        """Records an addition."""
        self._lowered.append(-tf.convert_to_tensor(value))  # read now, as it may be a slot that is about to change

    def assign_sub(self, value: Any) -> None:
        """Records a subtraction."""
        self._lowered.append(tf.convert_to_tensor(value))

    def lowered(self) -> tf.Tensor:
        """The total that was subtracted, [size] float32."""
        return tf.add_n(self._lowered)
