"""Momentum on the sender's side, before the selection."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.senders import Sender, Slots
from hvd_sparse.spec import MomentumRule, Spec

VELOCITY = "velocity"


@dataclasses.dataclass(frozen=True)
class MomentumCorrection(Sender):
    """Wraps error feedback: the momentum is accumulated, selected and sent instead of the gradient (DGC 3.2).

    Each sender keeps its own velocity next to its residual:

        velocity' = decay * velocity + gain * sum of the parts
        residual + velocity' goes into the selection (with Nesterov: residual + decay * velocity' + gain * sum)
        velocity' = 0 where a value was sent (momentum factor masking, DGC 3.3)

    The optimizer that applies the means has to run without momentum; `hvd.DistributedOptimizer` arranges that and hands
    its momentum over. Why: momentum after the exchange sees each value once, as the sum of many steps, instead of every
    step's gradient, and with Adam it moves rarely sent weights too little.

    If everything is sent, nothing is masked, so SGD and Nesterov work as they do without an exchange.

    Attributes:
        compressor: one with error feedback, such as `ErrorFeedback`.
        momentum: m in velocity' = m * velocity + sum; None takes the momentum that the optimizer hands over.
        masking: whether the velocity is set to zero where a value was sent.
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
                "MomentumCorrection takes over an optimizer's momentum, and has no optimizer: use "
                "hvd.DistributedOptimizer(optimizer, aggregator=...); or set it, MomentumCorrection(compressor, "
                "momentum=0.9), and apply the means with an optimizer without momentum."
            )
        return Velocity(spec, self.compressor.create(spec))

    def moves(self, parts, state):
        rule = self._rule(state.spec)
        velocity, moves, culprit = advanced(parts, state.velocity, rule)
        return moves, [(state.velocity, velocity)], culprit

    def sent(self, updates, selection, state):
        if not self.masking or self.count(state.spec.size) == state.spec.size:
            return updates
        return [(variable, cleared(value, selection.slices.indices)) for variable, value in updates]

    def _rule(self, spec: Spec) -> MomentumRule:
        if self.momentum is not None:
            return MomentumRule(self.momentum)
        assert spec.momentum is not None  # checked by `create`
        return spec.momentum.rule()


class Velocity(Slots):
    """The velocity [size] float32, in units of the sum of the parts, and the state of the wrapped compressor."""

    def __init__(self, spec: Spec, inner: tf.Module):
        variable = tf.Variable(tf.zeros([spec.size], tf.float32), trainable=False, name=f"{spec.name}_velocity")
        super().__init__(spec, {VELOCITY: variable})
        self.inner = inner

    @property
    def velocity(self) -> tf.Variable:
        """The only slot."""
        return self.slots[VELOCITY]

    @property
    def scale(self):
        """The number of parts."""
        return float(self.spec.parts)


def advanced(parts: tf.Tensor, velocity: tf.Tensor, rule: MomentumRule) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Updates a velocity with a gradient, in one pass over memory (momentum correction, DGC 3.2; Lin et al. 2018).

    Args:
        parts: [n, size] float32, float16 or bfloat16, n at least 1; the gradient is their sum, in order, in float32.
        velocity: [size] float32; a variable is not written.
        rule: decay, gain, and whether to use Nesterov momentum.

    Returns:
        velocity: [size] float32, decay * velocity + gain * gradient, each product and the sum rounded to float32.
        moves: [size] float32, what goes into the selection: the new velocity, uncopied, or with Nesterov decay * new
            velocity + gain * gradient.
        culprit: [] int32: 0; 1 + the lowest number of a part that holds a NaN or an infinity; or 1 + n if all parts
            are finite but `moves` is not. Unless it is 0, velocity and moves are meaningless.

    Raises:
        tf.errors.InvalidArgumentError: if parts is not a matrix or has no row, the velocity does not fit it, or decay
            or gain is not a scalar.
    """
    return ops.library().hvd_sparse_momentum(
        parts=parts,
        velocity=velocity,
        decay=tf.cast(rule.decay, tf.float32),
        gain=tf.cast(rule.gain, tf.float32),
        nesterov=rule.nesterov,
    )


def cleared(vector: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Sets the elements at the indices to zero (momentum factor masking, DGC 3.3; Lin et al. 2018).

    Args:
        vector: [size] float32. Its memory is reused if nothing else refers to it; a variable is not written.
        indices: [k] int32, all different.

    Returns:
        [size] float32.

    Raises:
        tf.errors.InvalidArgumentError: if an index is outside [0, size), which the message names, or an argument is
            not a vector.
    """
    return ops.library().hvd_sparse_clear(vector=vector, indices=indices)
