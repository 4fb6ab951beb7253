"""Gradients of embeddings, `tf.IndexedSlices`: the rows that were touched travel, exactly, and nothing else.

A rank first adds up its own rows of equal index, so that none is sent twice; values and indices go in one message.
The narrow rows of several variables go in one message together (`several.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from hvd_sparse.aggregators.transaction import Exchange, metrics, ring_traffic
from hvd_sparse.exchange import several
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
    values, indices = _sum_equal(slices.values, slices.indices)
    return tf.IndexedSlices(tf.cast(values, slices.values.dtype), indices, slices.dense_shape)


def merge_each(gradients: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
    """What `merge` makes of each, with few operations where there are many of one dtype and form."""
    merged: dict[int, tf.IndexedSlices] = {}
    for places in several.alike([(each.values.dtype, tuple(each.values.shape[1:])) for each in gradients]):
        own = [gradients[place] for place in places]
        together = len(own) > 1 and own[0].values.shape[1:].is_fully_defined()
        merged.update(zip(places, several.merge(own) if together else map(merge, own), strict=True))
    return [merged[place] for place in range(len(gradients))]


def exchange_each(
    gradients: Sequence[tf.IndexedSlices],
    segments: Sequence[Segment],
    grid: Grid,
    name: str,
    returns_sum: bool = False,
) -> list[Exchange]:
    """What `exchange` makes of each, to the bit; arguments and results as of `exchange`, for each variable.

    Steps and bytes sent per rank: those of `exchange`, but P - 1 steps for all narrow rows of one dtype and width.
    """
    ended: dict[int, Exchange] = {}
    for places in several.in_one_message(segments, [each.values.dtype for each in gradients]):
        own, of = [gradients[place] for place in places], [segments[place] for place in places]
        called = f"{name}{places[0]}"
        if len(own) > 1:
            ended.update(zip(places, several.exchange(own, of, grid, called, returns_sum), strict=True))
        else:
            ended[places[0]] = exchange(own[0], of[0], grid, called, returns_sum)
    return [ended[place] for place in range(len(gradients))]


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
    width = segment.size // segment.shape[0]
    divisor = 1.0 if returns_sum else float(world.size)
    own = tf.reshape(tf.cast(slices.values, tf.float32), [-1, width])
    message = tf.concat([marked_int32(slices.indices, "indices")[:, tf.newaxis], tf.bitcast(own, tf.int32)], axis=1)
    gathered = world.allgather(message, f"{name}.rows")
    with tf.control_dependencies([_inside(gathered[:, 0], segment)]):
        summed, indices = _sum_equal(tf.bitcast(gathered[:, 1:], tf.float32), gathered[:, 0])
    mean = tf.reshape(tf.cast(summed / divisor, slices.values.dtype), [-1, *segment.shape[1:]])
    count = tf.size(slices.indices)
    traffic = ring_traffic(world, grid, (world.size - 1) * count * 4 * (1 + width))
    return Exchange(
        mean=tf.IndexedSlices(mean, indices, tf.constant(segment.shape)),
        culprit=lambda: tf.where(_finite(own), 0, world.world_rank + 1),
        nonfinite=~_finite(summed),
        updates=(),
        metrics=metrics(traffic, count * width, count * width),
    )


def _inside(indices: tf.Tensor, segment: Segment) -> tf.Operation:
    """Raises where an index is not one of the variable's; all ranks look at the indices of all."""
    told = (
        f"The gradient of {segment.name}: expected row numbers in [0, {segment.shape[0]}), and a rank brings others "
        f"({OUTSIDE} stands for one that int32 cannot hold). Look for ids in the input that are not below input_dim of "
        "that embedding. Nothing was written."
    )
    inside = (indices >= 0) & (indices < segment.shape[0])
    return tf.debugging.Assert(tf.reduce_all(inside), [told, tf.boolean_mask(indices, ~inside)])


def _finite(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(values))


def _sum_equal(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    # On a GPU segments are added in no fixed order, and replicas would drift apart.
    with tf.device("CPU"):
        unique, places = tf.unique(marked_int32(indices, "indices"))
        return tf.math.unsorted_segment_sum(tf.cast(values, tf.float32), places, tf.size(unique)), unique
