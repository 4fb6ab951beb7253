"""Optimizers that need whole variables: to orthogonalise or to factor them, or for their norms."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.compression.updates import LocalSlots
from hvd_sparse.optimizers import copies, slots
from hvd_sparse.optimizers.shard_slots import Moved
from hvd_sparse.optimizers.variables import resource
from hvd_sparse.spec import Spec


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
        variables = slots.variables(optimizer)
        self._paths = [getattr(variables[segment.name], "path", "") for segment in spec.segments]
        self._twin = copies.twin(optimizer, self._stand_ins([None] * len(spec.segments)))
        self.of_variables = {
            (name, segment.name): slot
            for name, held in slots.lists(self._twin).items()
            for segment, slot in zip(spec.segments, held, strict=True)
            if slot is not None and "float" in slot.dtype  # Adafactor keeps the places of slots that it does not need
        }
        self._held = [slot.value for slot in self.of_variables.values()]  # for tf.Module

    def update(self, gradient, ahead):
        optimizer = slots.alive(self._optimizer)
        copies.follow(self._twin, optimizer)
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

    def _stand_ins(self, weights: Sequence[tf.Tensor | None]) -> list[Moved]:
        parts = zip(self.spec.segments, self._paths, weights, strict=True)
        return [
            Moved(segment.shape, f"{self.spec.name}_{number}", path, weight)
            for number, (segment, path, weight) in enumerate(parts)
        ]
