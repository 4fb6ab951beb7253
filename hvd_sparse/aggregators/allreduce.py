"""The dense mean by one all-reduce."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.aggregators.base import SCOPE, Aggregator, AggregatorState
from hvd_sparse.aggregators.transaction import (
    Exchange,
    Parts,
    Reduced,
    blame,
    metrics,
    nothing,
    own_culprit,
    ring_traffic,
)
from hvd_sparse.compression.selection import check_wire_dtype
from hvd_sparse.spec import Spec

_ADDED = (tf.float32, tf.float16)  # what Horovod can add


@dataclasses.dataclass(frozen=True)
class AllReduce(Aggregator):
    """The dense mean: CommLib's Dense, and the middle step of 2DTAR.

    Attributes:
        wire_dtype: "float32", "float16" or "bfloat16", in which values travel and are added; by default the vector's.

    Steps and bytes sent per rank: 2 (P - 1) and 2 (P - 1) / P of the vector, as a ring.
    """

    disk_name = "AllReduce"
    wire_dtype: str | None = None

    def __post_init__(self):
        if self.wire_dtype is not None:
            check_wire_dtype(self.wire_dtype)

    @property
    def sends_all(self):
        """True."""
        return True

    def reduce(self, parts, divisor, state):
        spec, communicator = state.spec, state.communicator
        if spec.size == 0:
            return nothing(parts, tf.cast(parts.rows[0], spec.dtype))
        summed, culprit = self._own_sum(parts, spec)
        wire = tf.as_dtype(self.wire_dtype or spec.dtype)
        total = communicator.allreduce(tf.cast(summed, wire), "sum", f"{spec.name}.allreduce")
        ranks = communicator.size
        sent = 2 * (ranks - 1) * spec.size * wire.size // ranks
        mean, nonfinite = ops.mean(total, divisor, spec.dtype)
        return Reduced(
            total=mean,
            culprit=culprit,
            updates=(),
            traffic=ring_traffic(communicator, spec.grid, sent),
            selected=spec.size,
            considered=spec.size,
            nonfinite=nonfinite,
        )

    def takes_apart(self, spec):
        """True if Horovod can add the gradients as they are."""
        return spec.dtype in _ADDED and self.wire_dtype in (None, spec.dtype.name)

    def exchange_apart(self, tensors, state, residual):
        spec, world = state.spec, state.communicator
        with tf.name_scope(SCOPE):
            totals = world.allreduce_each(tensors, "sum", f"{spec.name}.allreduce")
            # Every rank adds the same residual, so the sum over all ranks holds it P times.
            means, nonfinite = _means(totals, spec.divisor, residual * (world.size / spec.divisor))

        def culprit() -> tf.Tensor:
            culprits = [own_culprit(tf.reshape(tensor, [1, -1]), world.world_rank) for tensor in tensors]
            return tf.reduce_max(tf.stack(culprits))

        sent = 2 * (world.size - 1) * spec.size * spec.dtype.size // world.size
        traffic = ring_traffic(world, spec.grid, sent)
        return Exchange(means, culprit, nonfinite, (), metrics(traffic, spec.size, spec.size))

    def _own_sum(self, parts: Parts, spec: Spec) -> tuple[tf.Tensor, tf.Tensor]:
        """The sum of this rank's parts, and the fault found while adding; a single part is not checked."""
        if len(parts.sources) == 1:
            return tf.reshape(parts.rows, [spec.size]), tf.constant(0)
        summed, culprit = ops.sum_parts(parts.rows)
        return summed, blame(culprit, parts.sources, spec.grid)

    def residual(self, state):
        return tf.zeros([state.spec.size], tf.float32)

    def restored(self, state, residual):
        return ()

    def contributions(self, size, members):
        return None

    def _create(self, spec, communicator):
        return AggregatorState(spec, communicator)


def _means(totals: Sequence[tf.Tensor], divisor: int, residual: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Divides sums in place and checks in the same pass whether they are finite.

    Args:
        totals: the sums, all float32 or all float16, of any shapes.
        divisor: the divisor of every sum.
        residual: float32, empty or with as many elements as all totals together; it is added to the quotients.

    Returns:
        The means, in the shapes of the totals, and whether any of them is not finite, [] bool.
    """
    divisor = tf.constant(divisor, tf.float32)
    return ops.library().hvd_sparse_means(totals=totals, divisor=divisor, residual=residual)
