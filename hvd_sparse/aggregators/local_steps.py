"""Several local steps of each node between two exchanges."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse.aggregators import branches
from hvd_sparse.aggregators.base import Aggregator, AggregatorState
from hvd_sparse.aggregators.transaction import Update
from hvd_sparse.spec import Spec
from hvd_sparse.transport.communicator import Communicator


@dataclasses.dataclass(frozen=True)
class Outer:
    """The outer step: SGD on u, the mean of the nodes' updates, with a velocity v that all ranks share.

        v' = momentum v + u;  rate v' is subtracted from the weights, or rate (u + momentum v') with Nesterov

    Attributes:
        rate: the outer learning rate; 1 applies the mean as it is.
        momentum: the outer momentum; 0 for none.
        nesterov: whether to use Nesterov momentum.
    """

    disk_name = "Outer"
    rate: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self):
        if self.rate <= 0.0 or not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"Expected a rate above 0 and a momentum in [0, 1), got {self.rate} and {self.momentum}.")


class _Stepping(AggregatorState):
    """The inner's state, the number of steps so far, and the velocity of the outer step.

    Attributes:
        outer_velocity: float32, the same on all ranks: [size], or [0] without momentum.
    """

    def __init__(self, spec: Spec, communicator: Communicator, inner: AggregatorState, momentum: float):
        super().__init__(spec, communicator, inner)
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"{spec.name}_local_step")
        zeros = tf.zeros([spec.size if momentum else 0])
        self.outer_velocity = tf.Variable(zeros, trainable=False, name=f"{spec.name}_outer_velocity")

    def restart(self) -> None:
        """Sets the outer velocity to zero."""
        self.outer_velocity.assign(tf.zeros_like(self.outer_velocity))


@dataclasses.dataclass(frozen=True)
class LocalSteps(branches.Switch):
    """Exchanges every H-th step; in between each node trains on its own, at its own weights.

    With all of each node's updates and an outer Nesterov step it is DiLoCo (Douillard et al. 2023); with top-k of
    buckets, a decaying residual and 2 bits it is SparseLoCo (Sarfi et al. 2025). Inside a node, gradients are still
    averaged in every step.

    Attributes:
        inner: exchanges accumulated updates, `LocalUpdates(..., ahead=True, gathers=True)`.
        every: H, the number of steps from one exchange to the next, at least 1.
        outer: how the mean of the nodes' updates is applied.

    Steps and bytes sent per rank: in every H-th step the inner's; in the others the inner's inside the node, and one
    all-reduce of 4 bytes by which the ranks check that all gradients are finite.
    """

    disk_name = "LocalSteps"
    inner: Aggregator
    every: int
    outer: Outer = Outer()

    def __post_init__(self):
        if self.every < 1:
            raise ValueError(f"Expected an exchange every 1 or more steps, got every={self.every}.")
        self.inner.holding()  # raises if its input cannot wait

    def reduce(self, parts, divisor, state):
        meets = (state.step + 1) % self.every == 0
        outputs = tf.cond(
            meets,
            lambda: self._run(self.inner, parts, divisor, state),
            lambda: self._run(self.inner.holding(), parts, divisor, state),
        )
        lowered, moved = self._outer(tf.cast(outputs.total, tf.float32), state, meets)
        whole = outputs._replace(total=tf.cast(lowered, outputs.total.dtype))
        updates = (*self._written(outputs, state), *moved, Update(state.step, state.step + 1))
        return branches.unpack(whole, state.spec, updates)

    def _create(self, spec, communicator):
        return _Stepping(spec, communicator, self.inner._create(spec, communicator), self.outer.momentum)

    def _outer(self, mean: tf.Tensor, state: _Stepping, meets: tf.Tensor) -> tuple[tf.Tensor, tuple[Update, ...]]:
        """What is subtracted from the weights, and the update of the velocity."""
        outer = self.outer
        if not outer.momentum:
            return outer.rate * mean, ()
        velocity = outer.momentum * state.outer_velocity + mean
        moved = mean + outer.momentum * velocity if outer.nesterov else velocity
        lowered = tf.where(meets, outer.rate * moved, tf.zeros_like(mean))
        return lowered, (Update(state.outer_velocity, tf.where(meets, velocity, state.outer_velocity)),)
