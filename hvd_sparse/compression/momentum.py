"""Momentum on the sender's side, before what is sent is chosen."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse.compression.base import Compressor, Selection
from hvd_sparse.compression.senders import Sender, Slots
from hvd_sparse.spec import MomentumRule, Spec

VELOCITY = "velocity"


@dataclasses.dataclass(frozen=True)
class MomentumCorrection(Sender):
    """Wraps error feedback: what is accumulated, chosen and sent is the momentum, not the gradient (DGC 3.2).

    Each sender keeps a velocity of its own beside its residual:

        velocity' = decay * velocity + gain * sum of the parts
        residual + velocity' goes into the selection (with Nesterov: decay * velocity' + gain * sum in its place)
        velocity' = 0 where a value was sent (momentum factor masking, DGC 3.3)

    The optimizer that applies the means has to run without momentum; `hvd.DistributedOptimizer` sees to that, and hands
    its own momentum over. Why: momentum on what arrives sees each value once, as the sum of many steps, in place of
    every step's gradient, and with Adam moves a weight that is seldom sent too little.

    Where all is sent, nothing is masked, so that SGD and Nesterov are what they are without an exchange.

    Attributes:
        compressor: feeds back, as `ErrorFeedback`.
        momentum: m for velocity' = m * velocity + sum, where no optimizer hands over its own; None takes that.
        masking: whether the velocity is cleared where a value was sent.
    """

    disk_name = "MomentumCorrection"
    compressor: Compressor
    momentum: float | None = None
    masking: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.momentum is not None and not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"Expected a momentum in [0, 1), or None for the optimizer's, got {self.momentum}.")

    def create(self, spec):
        if self.momentum is None and spec.momentum is None:
            raise ValueError(
                "MomentumCorrection takes over the momentum of an optimizer, and none was handed over: use "
                "hvd.DistributedOptimizer(optimizer, aggregator=...); or name it, MomentumCorrection(compressor, "
                "momentum=0.9), and apply the means by an optimizer without momentum."
            )
        return Velocity(spec, self.compressor.create(spec))

    def moves(self, total, state):
        rule = self._rule(state.spec)
        gain, decay = tf.cast(rule.gain, tf.float32), tf.cast(rule.decay, tf.float32)
        velocity = decay * state.velocity + gain * total
        moves = decay * velocity + gain * total if rule.nesterov else velocity
        return moves, [(state.velocity, velocity)]

    def sent(self, updates, selection, state):
        if not self.masking or self.count(state.spec.size) == state.spec.size:
            return updates
        return [(variable, _cleared(value, selection)) for variable, value in updates]

    def _rule(self, spec: Spec) -> MomentumRule:
        if self.momentum is not None:
            return MomentumRule(self.momentum)
        assert spec.momentum is not None  # `create` has seen to it
        return spec.momentum.rule()


class Velocity(Slots):
    """The velocity [size] float32, in units of the sum of the parts, and the state of what is wrapped."""

    def __init__(self, spec: Spec, inner: tf.Module):
        variable = tf.Variable(tf.zeros([spec.size], tf.float32), trainable=False, name=f"{spec.name}_velocity")
        super().__init__(spec, {VELOCITY: variable})
        self.inner = inner

    @property
    def velocity(self) -> tf.Variable:
        """The one slot."""
        return self.slots[VELOCITY]

    @property
    def scale(self):
        """The number of parts."""
        return float(self.spec.parts)


def _cleared(velocity: tf.Tensor, selection: Selection) -> tf.Tensor:
    """The velocity without what was sent."""
    indices = selection.slices.indices[:, tf.newaxis]
    return tf.tensor_scatter_nd_update(velocity, indices, tf.zeros_like(selection.slices.indices, tf.float32))
