"""SparCML's training step exactly as in its Algorithm 1."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse.aggregators.base import Aggregator, AggregatorState
from hvd_sparse.aggregators.transaction import Parts, Update, dense
from hvd_sparse.spec import Spec
from hvd_sparse.transport.communicator import Communicator


class _Scaled(AggregatorState):
    """The inner's state, in units of learning rate times gradient, and the last nonzero learning rate."""

    def __init__(self, spec: Spec, communicator: Communicator, inner: AggregatorState):
        super().__init__(spec, communicator, inner)
        self.last_rate = tf.Variable(1.0, trainable=False, name=f"{spec.name}_last_rate")

    def rate(self) -> tf.Tensor:
        """The optimizer's current learning rate, [] float32."""
        assert self.spec.learning_rate is not None  # checked by `SparCMLAlgorithm1`
        return tf.cast(self.spec.learning_rate(), tf.float32)


@dataclasses.dataclass(frozen=True)
class SparCMLAlgorithm1(Aggregator):
    """Applies the learning rate inside the accumulator and returns the sum, as SparCML's Algorithm 1 does.

    With learning rate alpha, every rank accumulates acc = eps + alpha * gradient. The model is to move by g, the sum
    over all ranks of what the inner sends of acc. The optimizer gets g / alpha, so that plain SGD subtracts g up to the
    rounding of that division. Two things differ from all other aggregators:

    - It returns the sum over the ranks, not the mean: use 1 / P of the learning rate for the others.
    - The residual already contains the learning rate of its step, so a later learning rate does not scale it.

    At a learning rate of 0 nothing can be applied: the step returns zeros, and the residual stays as it was.

    Attributes:
        inner: the aggregator that exchanges acc; its residual is eps.

    Steps and bytes sent per rank: the inner's.
    """

    disk_name = "SparCMLAlgorithm1"
    has_own_code = True
    inner: Aggregator

    def __post_init__(self):
        if self.inner.sends_all or self.inner.returns_sum:
            raise ValueError(
                "SparCMLAlgorithm1 wraps an aggregator that averages and has a residual, such as SparseAllReduce or "
                f"Compressed, got {type(self.inner).__name__}."
            )

    @property
    def nests(self):
        """False: it must be outermost, as its sums contain the learning rate."""
        return False

    @property
    def returns_sum(self):
        """True."""
        return True

    def at_density(self, density):
        return dataclasses.replace(self, inner=self.inner.at_density(density))

    def reduce(self, parts, divisor, state):
        rate = state.rate()
        moves = tf.greater(rate, 0.0)
        scaled = Parts(tf.cast(parts.rows, tf.float32) * rate, parts.sources)
        reduced = self.inner.reduce(scaled, 1, state.inner)
        total = tf.math.divide_no_nan(dense(reduced.total, state.spec.size, 1, tf.float32), rate)
        updates = [_only_if(moves, update) for update in reduced.updates]
        last_rate = Update(state.last_rate, tf.where(moves, rate, state.last_rate))
        return reduced._replace(total=tf.cast(total, state.spec.dtype), updates=(*updates, last_rate))

    def residual(self, state):
        """In units of the gradient and to be averaged, so that another recipe can continue with it."""
        return self.inner.residual(state.inner) * (float(state.spec.grid.world.size) / state.last_rate)

    def restored(self, state, residual):
        rate = state.rate()
        rate = tf.where(rate > 0.0, rate, state.last_rate)
        inner = self.inner.restored(state.inner, residual * (rate / float(state.spec.grid.world.size)))
        return (*inner, Update(state.last_rate, rate)) if inner else ()

    def contributions(self, size, members):
        return None

    def _create(self, spec, communicator):
        if spec.learning_rate is None:
            raise ValueError(
                "as_published puts the learning rate inside the accumulator, and there is no optimizer to get it from: "
                "use hvd.DistributedOptimizer(optimizer, aggregator=...), or in your own loop "
                "hvd.GradientExchange(recipe, learning_rate=lambda: optimizer.learning_rate)."
            )
        inner = spec._replace(dtype=tf.float32, name=f"{spec.name}.accumulator")
        return _Scaled(spec, communicator, self.inner._create(inner, communicator))


def _only_if(moves: tf.Tensor, update: Update) -> Update:
    """The update, or the old value if nothing moves."""
    value = tf.cond(moves, lambda: tf.identity(update.value), update.variable.read_value)
    return update._replace(value=tf.ensure_shape(value, update.variable.shape))
