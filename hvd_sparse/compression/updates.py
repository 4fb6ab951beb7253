"""An optimizer on the sender's side: what it would do with a node's gradients is what the nodes exchange."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse.compression.selectors import Compressor
from hvd_sparse.compression.senders import Sender, Slots
from hvd_sparse.spec import Spec


@dataclasses.dataclass(frozen=True)
class LocalUpdates(Sender):
    """Wraps error feedback: what is accumulated, chosen and sent is by how much an optimizer would move the weights.

    Each node runs the optimizer on its own mean gradient, each rank on its shard of it, with moments of its own:

        update = learning rate * direction(mean gradient of the node)
        residual + update goes into the selection; what all nodes have sent is averaged and subtracted from the weights

    (Locally accumulated Adam, Chen and Deligiannis 2023, for any optimizer that works element by element.) Why: an
    optimizer with second moments, run on what arrives, sees each value once as the sum of many steps, and moves a
    weight that is seldom sent too little. Here each step is scaled before it waits.

    A vector is sent as update times the ranks of a node, so that residuals of ranks add up as those of gradients do.

    Attributes:
        compressor: feeds back, as `ErrorFeedback`.
        ahead: whether gradients are to be taken where the node's own unsent updates would have the weights, as
            `keras/ahead.py` does.
    """

    disk_name = "LocalUpdates"
    compressor: Compressor
    ahead: bool = False

    def create(self, spec):
        if spec.optimizer is None:
            raise ValueError(
                "LocalUpdates runs an optimizer, and none was handed over: use hvd.DistributedOptimizer(optimizer, "
                "aggregator=...). A tape and aggregate() have none; there take a recipe that exchanges gradients."
            )
        return _Updating(spec, spec.optimizer.create(spec), self.compressor.create(spec))

    def moves(self, total, state):
        ranks = tf.constant(float(state.spec.parts), tf.float32)
        update, slots = state.optimizer.update(total / ranks)
        return ranks * update, slots


class LocalSlots(Slots):
    """An optimizer's slots for a shard, and what it does with a gradient."""

    def update(self, gradient: tf.Tensor) -> tuple[tf.Tensor, list[tuple[tf.Variable, tf.Tensor]]]:
        """By how much weights are to be lowered [size] float32, and the new values of the slots; writes nothing.

        Args:
            gradient: [size] float32, the mean over a node.
        """
        raise NotImplementedError


class _Updating(tf.Module):
    def __init__(self, spec: Spec, optimizer: LocalSlots, inner: tf.Module):
        super().__init__()
        self.spec = spec
        self.optimizer = optimizer
        self.inner = inner
