"""Gradients of embeddings, `tf.IndexedSlices`: only the rows that were touched travel, exactly.

A rank first adds up its own rows with equal indices, so that none is sent twice; values and indices go in one message.
"""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.aggregators.transaction import Exchange, metrics, ring_traffic
from hvd_sparse.indices import OUTSIDE, marked_int32
from hvd_sparse.spec import Segment
from hvd_sparse.transport.communicator import Grid


def merge(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Adds up rows with equal indices.

    Args:
        slices: values [t, ...] and indices [t], in which an index may be repeated.

    Returns:
        Values [k, ...] of the same dtype, added in float32 in their order; unique indices [k] int32, in the order of
        their first occurrence. Indices that int32 cannot hold become `indices.OUTSIDE`, which later checks refuse.
    """
    values, indices = sum_equal(slices.values, marked_int32(slices.indices, "indices"))
    return tf.IndexedSlices(tf.cast(values, slices.values.dtype), indices, slices.dense_shape)


def exchange(slices: tf.IndexedSlices, segment: Segment, grid: Grid, name: str, returns_sum: bool = False) -> Exchange:
    """Averages the rows of all ranks; a row that a rank did not touch counts as zero there.

    Args:
        slices: values [k, ...] and unique indices [k], as returned by `merge`; k may differ between ranks.
        segment: the variable.
        grid: all ranks.
        name: the same on every rank, unique among the exchanges in flight.
        returns_sum: return the sum instead of the mean.

    Returns:
        An exchange without updates, whose mean is a `tf.IndexedSlices` with unique indices, the same bits on every
        rank: rows are added in rank order, in float32, and divided once by P.

    Raises:
        tf.errors.InvalidArgumentError: on every rank, if any rank has an index outside the variable.

    Steps and bytes sent per rank: P - 1 and (P - 1) k (4 + 4 bytes per element of a row).
    """
    world = grid.world
    width = width_of(segment)
    divisor = 1.0 if returns_sum else float(world.size)
    own = tf.reshape(tf.cast(slices.values, tf.float32), [-1, width])
    message = tf.concat([marked_int32(slices.indices, "indices")[:, tf.newaxis], tf.bitcast(own, tf.int32)], axis=1)
    gathered = world.allgather(message, f"{name}.rows")
    with tf.control_dependencies([_inside(gathered[:, 0], segment)]):
        summed, indices = sum_equal(tf.bitcast(gathered[:, 1:], tf.float32), gathered[:, 0])
    mean = tf.reshape(tf.cast(summed / divisor, slices.values.dtype), [-1, *segment.shape[1:]])
    count = tf.size(slices.indices)
    traffic = ring_traffic(world, grid, (world.size - 1) * count * 4 * (1 + width))
    return Exchange(
        mean=tf.IndexedSlices(mean, indices, tf.constant(segment.shape)),
        culprit=lambda: culprit(own, world.world_rank),
        nonfinite=~_finite(summed),
        updates=(),
        metrics=metrics(traffic, count * width, count * width),
    )


def _inside(indices: tf.Tensor, segment: Segment) -> tf.Operation:
    """Raises if an index is outside the variable; every rank checks the indices of all ranks."""
    inside = (indices >= 0) & (indices < segment.shape[0])
    return tf.debugging.Assert(tf.reduce_all(inside), [outside_told(segment), tf.boolean_mask(indices, ~inside)])


def outside_told(segment: Segment) -> str:
    """The beginning of the message about row numbers outside a variable; the numbers follow."""
    return (
        f"The gradient of {segment.name}: expected row numbers in [0, {segment.shape[0]}), and a rank has others "
        f"({OUTSIDE} stands for one that int32 cannot hold). Look for input ids that are not below the input_dim of "
        "that embedding. Nothing was written."
    )


def culprit(values: tf.Tensor, rank: int) -> tf.Tensor:
    """0, or 1 + this rank if its values are not finite."""
    return tf.where(_finite(values), 0, rank + 1)


def sum_equal(values: tf.Tensor, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Adds up rows with equal numbers, in float32 and in order; returns the sums [u, ...] and their numbers [u]."""
    # On a GPU, segments are added in no fixed order, and replicas would drift apart.
    with tf.device("CPU"):
        unique, places = tf.unique(numbers)
        return tf.math.unsorted_segment_sum(tf.cast(values, tf.float32), places, tf.size(unique)), unique


def width_of(segment: Segment) -> int:
    """Elements per row."""
    return segment.size // segment.shape[0]


def _finite(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(values))
