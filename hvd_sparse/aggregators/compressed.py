"""Aggregators in which each rank sends what its compressor selects."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse import collectives, ops
from hvd_sparse.aggregators import reports
from hvd_sparse.aggregators.base import Aggregator, AggregatorState
from hvd_sparse.aggregators.counting import CountingCommunicator
from hvd_sparse.aggregators.transaction import (
    Parts,
    Reduced,
    Traffic,
    Update,
    attended,
    blame,
    marked,
    nothing,
    ring_traffic,
)
from hvd_sparse.compression.base import Coded, Compressor, Selection
from hvd_sparse.transport.communicator import Communicator


@dataclasses.dataclass(frozen=True)
class Compressed(Aggregator):
    """Each rank sends what its compressor selects, and all contributions are added in rank order.

    With exact or MSTopK selection and error feedback this is CommLib's NaiveAG (3.2, Eq. 3).

    Attributes:
        compressor: usually wrapped in `ErrorFeedback`.

    Steps and bytes sent per rank: P - 1 and (P - 1) k (4 + bytes per value). If values are quantized, codes and scales
    take their place. If k or the number of scales differs between ranks, each message has 8 more bytes, or 16 if values
    are quantized.
    """

    disk_name = "Compressed"
    compressor: Compressor

    def reduce(self, parts, divisor, state):
        spec, communicator = state.spec, state.communicator
        if spec.size == 0:
            parts = attended(parts, self.compressor, state.inner)
            return nothing(parts, _no_slices(parts, tf.as_dtype(self.compressor.wire_dtype)))
        selection = self.compressor.compress(parts.rows, state.inner)
        gather = _gathered_by_count if _differ(self.compressor, selection.coded) else _gathered
        updates, asking = reports.averaged(selection, self.compressor, state)
        total, nonfinite, sent = gather(selection, communicator, f"{spec.name}.allgather_sum")
        return Reduced(
            total=total,
            culprit=blame(selection.culprit, parts.sources, spec.grid),
            updates=updates,
            traffic=ring_traffic(communicator, spec.grid, (communicator.size - 1) * sent).plus(asking),
            selected=collectives.count(selection.slices),
            considered=spec.size,
            nonfinite=nonfinite,
        )

    def residual(self, state):
        return _or_zeros(self.compressor.waiting(state.inner), state.spec.size)

    def node_residual(self, state):
        return _or_zeros(self.compressor.progress(state.inner), state.spec.size)

    def restored(self, state, residual):
        variable = self.compressor.residual(state.inner)
        if variable is None:
            return ()
        share = residual / float(state.communicator.size)
        return (Update(variable, share), *(Update(*each) for each in self.compressor.cleared(state.inner)))

    def contributions(self, size, members):
        count = self.compressor.count(size)
        return None if count is None else members * count

    def uneven_contributions(self, size, members):
        count = self.compressor.expected(size) if self.compressor.counts_differ else None
        return None if count is None else members * count

    def at_density(self, density):
        """At density 1 an `Accumulated`, which sends the whole vector by an all-reduce."""
        kind = Accumulated if density == 1.0 else Compressed
        return kind(self.compressor.at_density(density))

    def holding(self):
        if not self.compressor.holds:
            raise TypeError(
                "Updates can wait only if nodes go on with their own weights: write LocalUpdates(..., ahead=True)."
            )
        return Held(self.compressor)

    def _create(self, spec, communicator):
        return AggregatorState(spec, communicator, self.compressor.create(spec))


@dataclasses.dataclass(frozen=True)
class Accumulated(Compressed):
    """Adds up all that a compressor accumulates by an all-reduce: `Compressed` in dense steps.

    It can use a state of `Compressed`, so residual and momentum continue. The all-reduce adds in the wire dtype.

    Attributes:
        compressor: one that selects everything.

    Steps and bytes sent per rank: 2 (P - 1) and 2 (P - 1) / P of the vector, as a ring.
    """

    disk_name = "Accumulated"

    def reduce(self, parts, divisor, state):
        spec, counted = state.spec, CountingCommunicator(state.communicator, state.spec.grid)
        if spec.size == 0:
            parts = attended(parts, self.compressor, state.inner)
            return nothing(parts, tf.cast(parts.rows[0], spec.dtype))
        selection = self.compressor.compress(parts.rows, state.inner)
        updates, asking = reports.averaged(selection, self.compressor, state)
        values = ops.mark_nonfinite(selection.slices.values, selection.culprit != 0)
        vector = ops.sparse_sum(values, selection.slices.indices, spec.size)
        wire = tf.as_dtype(self.compressor.wire_dtype)
        total = counted.allreduce(tf.cast(vector, wire), "sum", f"{spec.name}.allreduce")
        mean, nonfinite = ops.mean(total, divisor, spec.dtype)
        return Reduced(
            total=mean,
            culprit=blame(selection.culprit, parts.sources, spec.grid),
            updates=updates,
            traffic=counted.traffic.plus(asking),
            selected=spec.size,
            considered=spec.size,
            nonfinite=nonfinite,
        )

    def contributions(self, size, members):
        return None

    def uneven_contributions(self, size, members):
        return None


@dataclasses.dataclass(frozen=True)
class Held(Compressed):
    """Sends nothing; what a compressor accumulates waits for a later step.

    It can use a state of `Compressed`. As nothing is exchanged, ranks have to ask whether all gradients are finite.

    Attributes:
        compressor: one that can wait: `LocalUpdates` with ahead=True.

    Steps and bytes sent per rank: none.
    """

    disk_name = "Held"
    sends_nothing = True

    def reduce(self, parts, divisor, state):
        spec = state.spec
        if spec.size == 0:
            parts = attended(parts, self.compressor, state.inner)
            return nothing(parts, tf.cast(parts.rows[0], spec.dtype))
        culprit, updates = self.compressor.hold(parts.rows, state.inner)
        return Reduced(
            total=tf.zeros([spec.size], spec.dtype),
            culprit=blame(culprit, parts.sources, spec.grid),
            updates=tuple(Update(variable, value) for variable, value in updates),
            traffic=Traffic(),
            selected=0,
            considered=spec.size,
        )

    def contributions(self, size, members):
        return None

    def uneven_contributions(self, size, members):
        return None


def _or_zeros(values: tf.Tensor | None, size: int) -> tf.Tensor:
    return tf.zeros([size], tf.float32) if values is None else values


def _gathered(selection: Selection, communicator: Communicator, name: str):
    """The contributions of all ranks, whether any is not finite, and the bytes of this rank's own."""
    slices, coded = selection.slices, selection.coded
    if coded is None:
        values = ops.mark_nonfinite(slices.values, selection.culprit != 0)
        slices = tf.IndexedSlices(values, slices.indices, slices.dense_shape)
        total = collectives.allgather_sum(slices, communicator, name)
        starts = [rank * collectives.count(slices) for rank in range(communicator.size)]
        return total, marked(total.values, starts), collectives.message_bytes(slices)
    return collectives.allgather_coded(slices, coded, communicator, name), None, collectives.coded_bytes(slices, coded)


def _gathered_by_count(selection: Selection, communicator: Communicator, name: str):
    """Like `_gathered`, for ranks whose messages differ in length."""
    slices, coded, nonfinite = selection.slices, selection.coded, selection.culprit != 0
    if coded is None:
        total, told = collectives.allgather_counted(slices, nonfinite, communicator, name)
        return total, told, collectives.counted_bytes(slices)
    total, told = collectives.allgather_coded_counted(slices, coded, nonfinite, communicator, name)
    return total, told, collectives.coded_counted_bytes(slices, coded)


def _differ(compressor: Compressor, coded: Coded | None) -> bool:
    """Whether the ranks' messages differ in length."""
    return compressor.counts_differ or (coded is not None and coded.quantizer.by_place)


def _no_slices(parts: Parts, dtype: tf.DType) -> tf.IndexedSlices:
    values = tf.cast(parts.rows[0], dtype)
    return tf.IndexedSlices(values, tf.zeros_like(values, tf.int32), tf.constant([0], tf.int32))
