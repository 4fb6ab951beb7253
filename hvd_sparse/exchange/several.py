"""Gradients of many tables of embeddings, whose rows are merged together and travel in one message.

A recommender has a table for each field. A message, and a dozen small operations, for each of them would take longer
than all else of a small batch. Rows of all tables count through; what comes out has the bits that `rows.exchange` gives
each variable by itself, since equal rows are added up in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import tensorflow as tf

from hvd_sparse.aggregators.transaction import Exchange, metrics, ring_traffic
from hvd_sparse.indices import OUTSIDE, marked_int32
from hvd_sparse.spec import Segment
from hvd_sparse.transport.communicator import Grid

NARROW = 128
"""Elements of a row, below which rows of several variables go in one message. Wide ones, as of a language model's
tables, are much to carry: they leave as soon as they are there."""
_SPAN = 2**32  # from the numbers of one table's rows to those of the next, whatever int32 an index is
_MOST_ROWS = 2**31


def alike(kinds: Sequence[Hashable]) -> list[list[int]]:
    """The places of what is of one kind, kind by kind, in their order."""
    groups: dict[Hashable, list[int]] = {}
    for place, kind in enumerate(kinds):
        groups.setdefault(kind, []).append(place)
    return list(groups.values())


def in_one_message(segments: Sequence[Segment], dtypes: Sequence[tf.DType]) -> list[list[int]]:
    """Which variables' rows travel together: the narrow ones of one dtype and width, whose rows int32 can count."""
    groups = alike([(dtype, _width(each)) for each, dtype in zip(segments, dtypes, strict=True)])
    return [part for group in groups for part in _parted(group, segments)]


def _parted(group: list[int], segments: Sequence[Segment]) -> list[list[int]]:
    if _width(segments[group[0]]) >= NARROW:
        return [[place] for place in group]
    parts, rows = [[group[0]]], segments[group[0]].shape[0]
    for place in group[1:]:
        rows += segments[place].shape[0]
        if rows >= _MOST_ROWS:
            parts.append([])
            rows = segments[place].shape[0]
        parts[-1].append(place)
    return parts


def merge(gradients: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
    """Adds up the rows of equal index of each; all are of one dtype, and their rows of one known form."""
    inner = gradients[0].values.shape[1:]
    lengths = [tf.shape(each.indices)[0] for each in gradients]
    tables = tf.repeat(tf.range(len(gradients), dtype=tf.int64), tf.stack(lengths))
    indices = tf.concat([marked_int32(each.indices, "indices") for each in gradients], 0)
    values = tf.concat([tf.reshape(each.values, [-1, inner.num_elements()]) for each in gradients], 0)
    summed, keys = _sum_equal(tf.cast(values, tf.float32), tables * _SPAN + tf.cast(indices, tf.int64))
    owners = tf.cast(tf.math.floordiv(keys + _SPAN // 2, _SPAN), tf.int32)
    own = tf.cast(keys - tf.cast(owners, tf.int64) * _SPAN, tf.int32)
    rows = _by_table(tf.cast(summed, gradients[0].values.dtype), owners, len(gradients))
    numbers = _by_table(own, owners, len(gradients))
    return [
        tf.IndexedSlices(tf.reshape(mine, [-1, *inner]), indices, each.dense_shape)
        for each, mine, indices in zip(gradients, rows, numbers, strict=True)
    ]


def exchange(
    gradients: Sequence[tf.IndexedSlices], segments: Sequence[Segment], grid: Grid, name: str, returns_sum: bool
) -> list[Exchange]:
    """Averages the rows of several variables of one dtype and width; see `rows.exchange_each`.

    The number of a row that its variable does not have travels in the place of the row's first value, and in its own
    place -1 - the variable's: it must not be taken for another variable's.
    """
    world, count = grid.world, len(segments)
    lengths = [tf.size(each.indices) for each in gradients]
    gathered = world.allgather(_message(gradients, segments, lengths), f"{name}.rows")
    with tf.control_dependencies([_require_inside(gathered, segments)]):
        summed, found = _sum_equal(tf.bitcast(gathered[:, 1:], tf.float32), gathered[:, 0])
    starts = tf.constant(_starts(segments))
    owners = tf.searchsorted(starts, found, side="right") - 1
    divisor = 1.0 if returns_sum else float(world.size)
    means = _by_table(tf.cast(summed / divisor, gradients[0].values.dtype), owners, count)
    numbers = _by_table(found - tf.gather(starts, owners), owners, count)
    faults = tf.cast(~tf.reduce_all(tf.math.is_finite(summed), axis=1), tf.int32)
    nonfinite = tf.unstack(tf.math.unsorted_segment_sum(faults, owners, count) > 0)
    sent = [(world.size - 1) * length * 4 * (1 + _width(segments[0])) for length in lengths]
    chosen = [length * _width(segments[0]) for length in lengths]
    return [
        Exchange(
            mean=tf.IndexedSlices(tf.reshape(mean, [-1, *of.shape[1:]]), own, tf.constant(of.shape)),
            culprit=_culprit(each.values, world.world_rank),
            nonfinite=fault,
            updates=(),
            metrics=metrics(ring_traffic(world, grid, bytes_sent), elements, elements),
        )
        for each, of, mean, own, fault, bytes_sent, elements in zip(
            gradients, segments, means, numbers, nonfinite, sent, chosen, strict=True
        )
    ]


def _message(
    gradients: Sequence[tf.IndexedSlices], segments: Sequence[Segment], lengths: Sequence[tf.Tensor]
) -> tf.Tensor:
    """The rows of all, int32 [rows, 1 + width]: the number of each, then the bits of its values."""
    tables = tf.repeat(tf.range(len(segments)), tf.stack(lengths))
    indices = tf.concat([marked_int32(each.indices, "indices") for each in gradients], 0)
    values = tf.concat([tf.reshape(each.values, [-1, _width(segments[0])]) for each in gradients], 0)
    bits = tf.bitcast(tf.cast(values, tf.float32), tf.int32)
    rows = tf.constant([each.shape[0] for each in segments], tf.int32)
    inside = (indices >= 0) & (indices < tf.gather(rows, tables))
    numbers = tf.where(inside, indices + tf.gather(tf.constant(_starts(segments)), tables), -1 - tables)
    first = tf.where(inside, bits[:, 0], indices)
    return tf.concat([numbers[:, tf.newaxis], first[:, tf.newaxis], bits[:, 1:]], 1)


def _starts(segments: Sequence[Segment]) -> np.ndarray:
    """How many rows there are before those of each variable."""
    return np.cumsum([0, *(each.shape[0] for each in segments[:-1])]).astype(np.int32)


def _culprit(values: tf.Tensor, rank: int) -> Callable[[], tf.Tensor]:
    return lambda: tf.where(tf.reduce_all(tf.math.is_finite(values)), 0, rank + 1)


def _require_inside(gathered: tf.Tensor, segments: Sequence[Segment]) -> tf.Operation:
    """Raises where an index is not one of its variable's; all ranks look at all, and tell of the first variable."""
    remedy = (
        f"and a rank brings others ({OUTSIDE} stands for one that int32 cannot hold). Look for ids in the input that "
        "are not below input_dim of that embedding. Nothing was written."
    )
    told = [f"The gradient of {each.name}: expected row numbers in [0, {each.shape[0]}), {remedy}" for each in segments]
    outside = tf.boolean_mask(gathered[:, :2], gathered[:, 0] < 0)
    named = tf.maximum(tf.reduce_max(outside[:, 0]), -len(segments))  # the first variable's that has one
    its = tf.boolean_mask(outside[:, 1], tf.equal(outside[:, 0], named))
    return tf.debugging.Assert(tf.equal(tf.size(outside), 0), [tf.gather(tf.constant(told), -1 - named), its])


def _by_table(rows: tf.Tensor, owners: tf.Tensor, count: int) -> list[tf.Tensor]:
    """The rows of each table, in their order."""
    return tf.dynamic_partition(rows, owners, count)


def _sum_equal(values: tf.Tensor, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    # On a GPU segments are added in no fixed order, and replicas would drift apart.
    with tf.device("CPU"):
        unique, places = tf.unique(numbers)
        return tf.math.unsorted_segment_sum(values, places, tf.size(unique)), unique


def _width(segment: Segment) -> int:
    return segment.size // segment.shape[0]
