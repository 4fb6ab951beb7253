"""Momentum and optimizers that run on the sender's side before error feedback: the base class and their slots."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.compression.base import Compressor, Selection, Wrapper
from hvd_sparse.spec import Gathered, Spec, flattened


class Slots(tf.Module):
    """An optimizer's slots, which hold its memory of past gradients, for a vector or a shard of one.

    Attributes:
        spec: the spec of the vector.
        slots: the slots by name, [size] float32 each.
        begins: the initial values of slots by name; 0 for those that are missing.
    """

    def __init__(self, spec: Spec, slots: Mapping[str, tf.Variable], begins: Mapping[str, float] = {}):
        super().__init__()
        self.spec = spec
        self.slots = dict(slots)
        self.begins = dict(begins)

    @property
    def scale(self) -> float:
        """The factor that converts the slots of a mean over nodes to those of this rank."""
        return 1.0

    def part(self) -> dict[str, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
        """What this rank has of each slot, in units of the mean over nodes; no collective.

        Returns:
            By slot name, values and by how many ranks they are known here (0 or 1), by variable name.
        """
        own = slice(self.spec.offset, self.spec.offset + self.spec.size)
        known = np.zeros(self._whole_size, np.float32)
        known[own] = 1.0
        found = {}
        for slot, held in self.slots.items():
            values = np.zeros(self._whole_size, np.float32)
            values[own] = held.numpy() / self.scale
            found[slot] = self._by_variable(values), self._by_variable(known)
        return found

    def gather(self, name: str) -> dict[str, dict[str, np.ndarray]]:
        """The mean over all nodes of each slot, by slot name and variable name; a collective.

        Args:
            name: begins the names of collectives; the same on every rank.
        """
        world, weight = self.spec.grid.world, self.spec.parts / (self.scale * self.spec.grid.world.size)
        after = self._whole_size - self.spec.offset - self.spec.size
        found = {}
        for slot, values in self.slots.items():
            padded = tf.pad(values.read_value() * weight, [[self.spec.offset, after]])
            found[slot] = self._by_variable(world.allreduce(padded, "sum", f"{name}.gather_{slot}").numpy())
        return found

    def give(self, gathered: Gathered, name: str) -> None:
        """Takes the slots that rank 0 has; a slot that is missing gets its initial value. A collective.

        Args:
            gathered: in units of the mean over nodes; ignored on other ranks.
            name: as for `gather`.
        """
        begin, end = self.spec.offset, self.spec.offset + self.spec.size
        for slot, values in self.slots.items():
            whole = flattened(self.spec.segments, gathered.get(slot, {}), self.begins.get(slot, 0.0))
            whole = self.spec.grid.world.broadcast(whole, 0, f"{name}.give_{slot}")
            values.assign(whole[begin:end] * self.scale)

    @property
    def _whole_size(self) -> int:
        return sum(segment.size for segment in self.spec.segments)

    def _by_variable(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        ends = np.cumsum([segment.size for segment in self.spec.segments])[:-1]
        pairs = zip(self.spec.segments, np.split(flat, ends), strict=True)
        return {segment.name: piece.reshape(segment.shape) for segment, piece in pairs}


def slots_of(state: tf.Module) -> list[Slots]:
    """All slots that the state of an exchange keeps instead of an optimizer."""
    return [part for part in state.submodules if isinstance(part, Slots)]


class Sender(Wrapper):
    """Transforms the sum of the parts before error feedback; it goes around `ErrorFeedback`, once."""

    compressor: Compressor
    feeds_back = True

    def __post_init__(self):
        if not self.compressor.feeds_back or isinstance(self.compressor, Sender):
            name = type(self).__name__
            raise ValueError(
                f"{name} wraps exactly one error feedback, got {type(self.compressor).__name__}: write "
                f"{name}(ErrorFeedback(compressor))."
            )

    @abc.abstractmethod
    def moves(self, parts: tf.Tensor, state: Any) -> tuple[tf.Tensor, list[tuple[tf.Variable, tf.Tensor]], tf.Tensor]:
        """The input of error feedback, [size] float32, the new values of the slots, and the culprit.

        Args:
            parts: as for `compress`.
            state: what `create` returned.
        """

    def sent(self, updates: list, selection: Selection, state: Any) -> list[tuple[tf.Variable, tf.Tensor]]:
        """The new values of the slots after the selection."""
        return updates

    def compress(self, parts, state, residual=None):
        if residual is not None:
            raise ValueError(f"{type(self).__name__} keeps its own residual and accepts no other: leave out residual.")
        moves, updates, culprit = self.moves(parts, state)
        selection = self.compressor.compress(moves[tf.newaxis], state.inner)
        overflow = tf.where(selection.culprit == 0, 0, 1 + tf.shape(parts)[0])
        return selection._replace(
            culprit=tf.where(culprit == 0, overflow, culprit),
            updates=(*selection.updates, *self.sent(updates, selection, state)),
        )
