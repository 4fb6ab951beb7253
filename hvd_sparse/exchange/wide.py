"""Gradients that buckets do not hold, such as those of float64: each takes an all-reduce of its own."""

from __future__ import annotations

import functools

import tensorflow as tf

from hvd_sparse.aggregators.transaction import Exchange, metrics, ring_traffic
from hvd_sparse.exchange import rows
from hvd_sparse.exchange.plan import Gradient
from hvd_sparse.transport.communicator import Grid


def exchange(
    gradient: Gradient, grid: Grid, name: str, wire_dtype: str | None = None, returns_sum: bool = False
) -> Exchange:
    """Averages a gradient of any floating-point type; `tf.IndexedSlices` as a dense tensor.

    Args:
        gradient: of the same shape and dtype on every rank.
        grid: all ranks.
        name: the same on every rank, unique among the exchanges in flight.
        wire_dtype: in which values travel and are added; by default the gradient's.
        returns_sum: return the sum instead of the mean.

    Returns:
        An exchange without updates, whose mean has the gradient's shape and dtype.

    Steps and bytes sent per rank: 2 (P - 1) and 2 (P - 1) / P of the gradient, as a ring.
    """
    world = grid.world
    own = tf.convert_to_tensor(gradient)
    wire = tf.as_dtype(wire_dtype or own.dtype)
    total = tf.cast(world.allreduce(tf.cast(own, wire), "sum", name), own.dtype)
    sent = 2 * (world.size - 1) * tf.size(own, tf.int64) * wire.size // world.size
    return Exchange(
        mean=total if returns_sum else total / world.size,
        culprit=functools.partial(rows.culprit, own, world.world_rank),
        nonfinite=~tf.reduce_all(tf.math.is_finite(total)),
        updates=(),
        metrics=metrics(ring_traffic(world, grid, sent), tf.size(own), tf.size(own)),
    )
