"""Momentum on the sender's side, before what is sent is chosen."""

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


def advanced(parts: tf.Tensor, velocity: tf.Tensor, rule: MomentumRule) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Takes a gradient into a velocity, in one pass over memory (momentum correction, DGC 3.2; Lin et al. 2018).

    Args:
        parts: [n, size] float32, float16 or bfloat16, n at least 1; the gradient is their sum, in order, in float32.
        velocity: [size] float32; a variable is not written.
        rule: decay and gain, and whether Nesterov's step is wanted.

    Returns:
        velocity: [size] float32, decay * velocity + gain * gradient, each product and the sum rounded to float32.
        moves: [size] float32, what goes into the selection: the new velocity, uncopied, or with Nesterov decay * new
            velocity + gain * gradient.
        culprit: [] int32: 0; 1 + the lowest number of a part that holds a NaN or an infinity; or 1 + n where all parts
            are finite but `moves` is not. With a culprit, velocity and moves are of no use.

    Raises:
        tf.errors.InvalidArgumentError: where parts is no matrix or has no row, the velocity does not fit it, or decay
            or gain is no scalar.
    """
    return ops.library().hvd_sparse_momentum(
        parts=parts,
        velocity=velocity,
        decay=tf.cast(rule.decay, tf.float32),
        gain=tf.cast(rule.gain, tf.float32),
        nesterov=rule.nesterov,
    )


def cleared(vector: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Sets what is at the indices to zero (momentum factor masking, DGC 3.3; Lin et al. 2018).

    Args:
        vector: [size] float32. The result takes its place where nobody else holds it; a variable is not written.
        indices: [k] int32, all different.

    Returns:
        [size] float32.

    Raises:
        tf.errors.InvalidArgumentError: where an index is outside [0, size), and it says which, or one of both is no
            vector.
    """
    return ops.library().hvd_sparse_clear(vector=vector, indices=indices)
