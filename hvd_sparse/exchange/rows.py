"""Gradients of embeddings, `tf.IndexedSlices`: the rows that were touched travel, exactly, and nothing else.

A rank first adds up its own rows of equal index, so that none is sent twice; values and indices go in one message.
"""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.aggregators.transaction import Exchange, metrics, ring_traffic
from hvd_sparse.indices import OUTSIDE, marked_int32
from hvd_sparse.spec import Segment
from hvd_sparse.transport.communicator import Grid


def merge(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Adds up rows of equal index.

    Args:
        slices: values [t, ...] and indices [t], in which an index may occur again.

    Returns:
        Values [k, ...] of the same dtype, added in float32 in the order in which they stand; unique indices [k] int32,
        in the order of their first occurrence. Those that int32 cannot hold become `indices.OUTSIDE`: whoever uses them
        finds that they are none.
    """
    values, indices = sum_equal(slices.values, marked_int32(slices.indices, "indices"))
    return tf.IndexedSlices(tf.cast(values, slices.values.dtype), indices, slices.dense_shape)


def exchange(slices: tf.IndexedSlices, segment: Segment, grid: Grid, name: str, returns_sum: bool = False) -> Exchange:
    """Averages the rows of all ranks; a row that a rank did not touch counts as zero there.

    Args:
        slices: values [k, ...] and unique indices [k], as `merge` gives them; k may differ between ranks.
        segment: the variable.
        grid: all ranks.
        name: the same on every rank, unique among the exchanges in flight.
        returns_sum: add the rows up, and do not divide by P.

    Returns:
        An exchange without updates, whose mean is a `tf.IndexedSlices` with unique indices, the same bits on every
        rank: rows are added in rank order, in float32, and divided once by P.

    Raises:
        tf.errors.InvalidArgumentError: on every rank alike where a rank brings an index outside of the variable.

    Steps and bytes sent per rank: P - 1 and (P - 1) k (4 + 4 bytes an element of a row).
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
    """Raises where an index is not one of the variable's; all ranks look at the indices of all."""
    inside = (indices >= 0) & (indices < segment.shape[0])
    return tf.debugging.Assert(tf.reduce_all(inside), [outside_told(segment), tf.boolean_mask(indices, ~inside)])


def outside_told(segment: Segment) -> str:
    """What is said of row numbers that a variable does not have; they follow."""
    return (
        f"The gradient of {segment.name}: expected row numbers in [0, {segment.shape[0]}), and a rank brings others "
        f"({OUTSIDE} stands for one that int32 cannot hold). Look for ids in the input that are not below input_dim of "
        "that embedding. Nothing was written."
    )


def culprit(values: tf.Tensor, rank: int) -> tf.Tensor:
    """Who brings values that are not finite: 0 for nobody, else 1 + this rank."""
    return tf.where(_finite(values), 0, rank + 1)


def sum_equal(values: tf.Tensor, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Adds up, in float32, the rows of equal number, in their order; the sums [u, ...] and their numbers [u]."""
    # On a GPU segments are added in no fixed order, and replicas would drift apart.
    with tf.device("CPU"):
        unique, places = tf.unique(numbers)
        return tf.math.unsorted_segment_sum(tf.cast(values, tf.float32), places, tf.size(unique)), unique


def width_of(segment: Segment) -> int:
    """Elements of a row."""
    return segment.size // segment.shape[0]


def _finite(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(values))
