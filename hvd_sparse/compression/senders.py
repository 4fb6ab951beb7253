"""What runs on the sender's side before error feedback, and the part of an optimizer that it keeps there."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from hvd_sparse.compression.base import Compressor, Selection, Wrapper
from hvd_sparse.spec import Spec


class Slots(tf.Module):
    """What an optimizer remembers of past gradients, kept for a vector or a shard of one.

    Attributes:
        spec: of the vector.
        slots: [size] float32 each, by a name that says what it is.
        begins: what a slot holds in the beginning, 0 where it is not named.
    """

    def __init__(self, spec: Spec, slots: Mapping[str, tf.Variable], begins: Mapping[str, float] = {}):
        super().__init__()
        self.spec = spec
        self.slots = dict(slots)
        self.begins = dict(begins)

    @property
    def scale(self) -> float:
        """What the slots of a mean over nodes are multiplied by to be those of this rank."""
        return 1.0


def slots_of(state: tf.Module) -> list[Slots]:
    """All that the state of an exchange keeps in place of an optimizer."""
    return [part for part in state.submodules if isinstance(part, Slots)]


class Sender(Wrapper):
    """Turns the sum of the parts into what is accumulated, chosen and sent; goes around error feedback, once."""

    compressor: Compressor
    feeds_back = True

    def __post_init__(self):
        if not self.compressor.feeds_back or isinstance(self.compressor, Sender):
            name = type(self).__name__
            raise ValueError(
                f"{name} goes around error feedback, once: write {name}(ErrorFeedback(compressor)); got "
                f"{type(self.compressor).__name__} in it."
            )

    @abc.abstractmethod
    def moves(self, parts: tf.Tensor, state: Any) -> tuple[tf.Tensor, list[tuple[tf.Variable, tf.Tensor]], tf.Tensor]:
        """What goes into error feedback [size] float32, the new values of slots, and what is to blame.

        Args:
            parts: as for `compress`.
            state: what `create` returned.
        """

    def sent(self, updates: list, selection: Selection, state: Any) -> list[tuple[tf.Variable, tf.Tensor]]:
        """The new values of slots, once it is known what is sent."""
        return updates

    def compress(self, parts, state, residual=None):
        if residual is not None:
            raise ValueError(f"{type(self).__name__} keeps its own residual and takes no other: leave residual out.")
        moves, updates, culprit = self.moves(parts, state)
        selection = self.compressor.compress(moves[tf.newaxis], state.inner)
        overflow = tf.where(selection.culprit == 0, 0, 1 + tf.shape(parts)[0])
        return selection._replace(
            culprit=tf.where(culprit == 0, overflow, culprit),
            updates=(*selection.updates, *self.sent(updates, selection, state)),
        )
