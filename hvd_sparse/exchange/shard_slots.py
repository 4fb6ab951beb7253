"""The slots of an optimizer for one shard, and its step on the shard or its node's vector, which writes nothing."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.compression.updates import LocalSlots
from hvd_sparse.exchange import on_shards, slots
from hvd_sparse.exchange.gradients import resource
from hvd_sparse.exchange.on_shards import Piece
from hvd_sparse.spec import Spec

# Keras's optimizers that treat each element on its own, independent of the weights, and those that need all of a
# variable: to orthogonalise or to factor it, or for its norm.
ELEMENT_WISE = ("SGD", "RMSprop", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "Lion")
WHOLE = ("Muon", "Adafactor", "Lamb")


class TwinSlots(LocalSlots):
    """The slots of an optimizer's twin for a shard, [size] float32 each, and its element-wise step."""

    def __init__(self, spec: Spec, optimizer: keras.optimizers.Optimizer, steps: tf.Variable | None = None):
        """Takes the vector, the optimizer, and the number of steps taken, if that is not `iterations`."""
        self._optimizer = weakref.ref(optimizer)
        self._twin = slots.twin(optimizer, [_Moved([spec.size], spec.name)], steps)
        self._variables = {name: held[spec.name] for name, held in slots.by_name(self._twin).items()}
        begins = {name: float(slot.value.numpy()[0]) for name, slot in self._variables.items() if spec.size}
        super().__init__(spec, {name: slot.value for name, slot in self._variables.items()}, begins)
        self.normalizes = on_shards.offered(optimizer) is not None or not isinstance(optimizer, keras.optimizers.SGD)

    def update(self, gradient, ahead):
        optimizer = _alive(self._optimizer)
        slots.follow(self._twin, optimizer)
        moved = _Moved([self.spec.size], self.spec.name)
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
        optimizer = _alive(self._optimizer)
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


class WholeSlots(LocalSlots):
    """The slots of one of Keras's optimizers that need whole variables; each rank of a node has all of them.

    If the vector is cut into shards, the ranks of the node gather the gradient, and with `ahead` what they have not
    sent, run the same step on all variables, and keep their shard of the update: n - 1 steps, and 4 (n - 1) or
    8 (n - 1) bytes per element of the rank's shard. A rank with an empty shard sends nothing and has no use for its
    slots.

    Attributes:
        of_variables: Keras's slots by their name and that of their variable.
    """

    normalizes = True

    def __init__(self, spec: Spec, optimizer: keras.optimizers.Optimizer):
        super().__init__(spec, {})
        self._optimizer = weakref.ref(optimizer)
        self._paths = [slots.variables(optimizer)[segment.name].path for segment in spec.segments]
        self._twin = slots.twin(optimizer, self._stand_ins([None] * len(spec.segments)))
        self.of_variables = {
            (name, segment.name): slot
            for name, held in slots.lists(self._twin).items()
            for segment, slot in zip(spec.segments, held, strict=True)
            if slot is not None and "float" in slot.dtype  # Adafactor keeps the places of slots that it does not need
        }
        self._held = [slot.value for slot in self.of_variables.values()]  # for tf.Module

    def update(self, gradient, ahead):
        optimizer = _alive(self._optimizer)
        slots.follow(self._twin, optimizer)
        gradients, unsent = self._whole(gradient, ahead)
        moved = self._stand_ins(self._weights(optimizer, unsent))
        with keras.StatelessScope(initialize_variables=False) as scope:
            for each, stand_in in zip(self._cut(gradients), moved, strict=True):
                self._twin.update_step(each, stand_in, optimizer.learning_rate)
            new = [scope.get_current_value(slot) for slot in self.of_variables.values()]
        lowered = tf.concat([tf.reshape(each.lowered(), [-1]) for each in moved], 0)
        own = lowered[self.spec.offset : self.spec.offset + self.spec.size]
        return own, [(slot, value) for slot, value in zip(self._held, new, strict=True) if value is not None]

    def attend(self, parts, ahead):
        nothing = tf.reshape(tf.cast(parts, tf.float32), [0])
        gathered, _ = self._whole(nothing, nothing if ahead else None)
        return parts + tf.cast(tf.reduce_sum(gathered), parts.dtype)  # still empty, but the collective has to run

    def gather(self, name):
        world, weight = self.spec.grid.world, 1.0 / self.spec.senders if self._speaks_for_its_node else 0.0
        found: dict[str, dict[str, np.ndarray]] = {}
        for number, ((slot, variable), held) in enumerate(self.of_variables.items()):
            mean = world.allreduce(held.value.read_value() * weight, "sum", f"{name}.gather{number}")
            found.setdefault(slot, {})[variable] = mean.numpy()
        return found

    def give(self, gathered, name):
        for number, ((slot, variable), held) in enumerate(self.of_variables.items()):
            own = gathered.get(slot, {}).get(variable, np.zeros(held.shape))
            held.assign(self.spec.grid.world.broadcast(tf.constant(own, tf.float32), 0, f"{name}.give{number}"))

    @property
    def _speaks_for_its_node(self) -> bool:
        return self.spec.holders is None or self.spec.holders.rank == 0  # whose shard is never empty

    def _whole(self, gradient: tf.Tensor, ahead: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Both vectors with all elements, not only this shard's."""
        if self.spec.holders is None:
            return gradient, ahead
        own = tf.stack([gradient] if ahead is None else [gradient, ahead], axis=1)
        gathered = self.spec.holders.allgather(own, f"{self.spec.name}.whole")
        return gathered[:, 0], None if ahead is None else gathered[:, 1]

    def _weights(self, optimizer: Any, unsent: tf.Tensor | None) -> list[tf.Tensor]:
        """The weights at which the gradient was computed."""
        variables = slots.variables(optimizer)
        held = [tf.cast(resource(variables[segment.name]), tf.float32) for segment in self.spec.segments]
        return held if unsent is None else [one - other for one, other in zip(held, self._cut(unsent), strict=True)]

    def _cut(self, whole: tf.Tensor) -> list[tf.Tensor]:
        """The variables' parts of a vector, in their shapes."""
        pieces = tf.split(whole, [segment.size for segment in self.spec.segments])
        return [tf.reshape(piece, segment.shape) for piece, segment in zip(pieces, self.spec.segments, strict=True)]

    def _stand_ins(self, weights: Sequence[tf.Tensor | None]) -> list[_Moved]:
        parts = zip(self.spec.segments, self._paths, weights, strict=True)
        return [
            _Moved(segment.shape, f"{self.spec.name}_{number}", path, weight)
            for number, (segment, path, weight) in enumerate(parts)
        ]


def made(spec: Spec, optimizer: keras.optimizers.Optimizer) -> LocalSlots:
    """The slots of an optimizer for a vector, or a shard of one."""
    if on_shards.offered(optimizer) is not None:
        return PieceSlots(spec, optimizer)
    return TwinSlots(spec, optimizer) if is_element_wise(optimizer) else WholeSlots(spec, optimizer)


def is_known(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether there are slots for an optimizer."""
    return on_shards.offered(optimizer) is not None or _is_of_keras(optimizer, (*ELEMENT_WISE, *WHOLE))


def is_element_wise(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether the step is one of Keras's element-wise ones; a subclass may have another step."""
    return _is_of_keras(optimizer, ELEMENT_WISE)


def _is_of_keras(optimizer: keras.optimizers.Optimizer, names: Sequence[str]) -> bool:
    """Whether the step is that of Keras's class of one of these names."""
    home = next(cls for cls in type(optimizer).__mro__ if "update_step" in vars(cls))
    return home.__module__.partition(".")[0] == "keras" and home.__name__ in names


def _alive(reference: weakref.ref[keras.optimizers.Optimizer]) -> Any:
    optimizer = reference()
    assert optimizer is not None  # alive, as it applies the update returned here
    return optimizer


class _Moved:
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
