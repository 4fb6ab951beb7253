"""An optimizer on the sender's side: what it would do with a node's gradients is what the nodes exchange."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.senders import Sender, Slots
from hvd_sparse.spec import Spec


@dataclasses.dataclass(frozen=True)
class LocalUpdates(Sender):
    """Wraps error feedback: what is accumulated, chosen and sent is by how much an optimizer would move the weights.

    Each node runs the optimizer on its own mean gradient, each rank on its shard of it, with moments of its own:

        update = learning rate * direction(mean gradient of the node)
        residual + update goes into the selection; what all nodes have sent is averaged and subtracted from the weights

    (Locally accumulated Adam, Chen and Deligiannis 2023, for any optimizer that works element by element, and for those
    that compare norms of variables, which the ranks of a node add up: LARS and LAMB, You et al. 2017, 2020.) Why: an
    optimizer with second moments, run on what arrives, sees each value once as the sum of many steps, and moves a
    weight that is seldom sent too little. Here each step is scaled before it waits.

    A vector is sent as update times the ranks of a node, so that residuals of ranks add up as those of gradients do.

    Attributes:
        compressor: feeds back, as `ErrorFeedback`.
        ahead: whether gradients are to be taken where the node's own unsent updates would have the weights, as
            `keras/ahead.py` does.
        gathers: whether updates of steps without an exchange, as `LocalSteps` has them, gather beside the residual, and
            it is these alone that the node is ahead by: each exchange puts all nodes back on the weights that they
            share. Otherwise they join the residual, and a node never forgets what it has not sent.
    """

    disk_name = "LocalUpdates"
    compressor: Compressor
    ahead: bool = False
    gathers: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.gathers and not self.ahead:
            raise ValueError("Steps without an exchange are taken at the node's own weights: pass ahead=True.")

    @property
    def holds(self) -> bool:  # type: ignore[override]
        """Where a node goes on at its own weights."""
        return self.ahead

    def create(self, spec):
        if spec.optimizer is None:
            raise ValueError(
                "LocalUpdates runs an optimizer, and none was handed over: use hvd.DistributedOptimizer(optimizer, "
                "aggregator=...). A tape and aggregate() have none; there take a recipe that exchanges gradients."
            )
        return _Updating(spec, spec.optimizer.create(spec), self.compressor.create(spec), self.gathers)

    def moves(self, parts, state):
        total, culprit = ops.sum_parts(parts)
        moves, updates = self._moved(total, state)
        return moves, [*updates, *self.cleared(state)], culprit

    def hold(self, parts, state):
        total, culprit = ops.sum_parts(parts)
        moves, updates = self._moved(total, state)
        if state.gathered is not None:
            return culprit, (*updates, (state.gathered, moves))
        residual: Any = self.residual(state)
        return culprit, (*updates, (residual, residual + moves))

    def waiting(self, state):
        kept = super().waiting(state)
        return kept if state.gathered is None or kept is None else kept + state.gathered

    def progress(self, state):
        return super().progress(state) if state.gathered is None else state.gathered.read_value()

    def attend(self, parts, state):
        return state.optimizer.attend(parts)

    def cleared(self, state):
        return () if state.gathered is None else ((state.gathered, tf.zeros_like(state.gathered)),)

    def _moved(self, total: tf.Tensor, state: Any) -> tuple[tf.Tensor, list[tuple[tf.Variable, tf.Tensor]]]:
        """This step's update and what has gathered before it, and the new values of slots."""
        ranks = tf.constant(float(state.spec.parts), tf.float32)
        progress = self.progress(state) if self.ahead else None
        update, slots = state.optimizer.update(total / ranks, None if progress is None else progress / ranks)
        moves = ranks * update
        return moves if state.gathered is None else state.gathered + moves, slots


class LocalSlots(Slots):
    """An optimizer's slots for a shard, and what it does with a gradient."""

    def update(
        self, gradient: tf.Tensor, ahead: tf.Tensor | None
    ) -> tuple[tf.Tensor, list[tuple[tf.Variable, tf.Tensor]]]:
        """By how much weights are to be lowered [size] float32, and the new values of the slots; writes nothing.

        Args:
            gradient: [size] float32, the mean over a node.
            ahead: [size] float32, how much lower the weights were at which it was taken than those that all ranks
                share; None where it was taken at these.
        """
        raise NotImplementedError

    def attend(self, parts: tf.Tensor) -> tf.Tensor:
        """Does for an empty shard what the ranks of a node do together in `update`; see `Compressor.attend`."""
        return parts


class _Updating(tf.Module):
    def __init__(self, spec: Spec, optimizer: LocalSlots, inner: tf.Module, gathers: bool):
        super().__init__()
        self.spec = spec
        self.optimizer = optimizer
        self.inner = inner
        self.gathered: tf.Variable | None = None
        if gathers:
            zeros = tf.zeros([spec.size], tf.float32)
            self.gathered = tf.Variable(zeros, trainable=False, name=f"{spec.name}_gathered")
