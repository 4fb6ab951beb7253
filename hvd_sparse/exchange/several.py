"""Gradients of many embedding tables, whose rows are merged together and travel in one message.

A recommender has a table per field. A message and a dozen small operations for each of them would take longer than the
rest of a small batch. The rows of all tables are numbered consecutively; the results have the same bits as those of
`rows.exchange` for each variable by itself, since equal rows are added up in the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.aggregators.transaction import Exchange, metrics, ring_traffic
from hvd_sparse.exchange import rows
from hvd_sparse.indices import marked_int32
from hvd_sparse.spec import Segment
from hvd_sparse.transport.communicator import Grid

NARROW = 128
"""Elements per row below which rows of several variables go in one message. Wide rows, as in a language model's tables,
take long to send, so they are sent as soon as they are ready."""
_SPAN = 2**32  # distance between the row numbers of two tables, enough for any int32 index
_MOST_ROWS = 2**31


def merge(gradients: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
    """Like `rows.merge` for each, with few operations if there are many of one dtype and form."""
    merged: dict[int, tf.IndexedSlices] = {}
    for places in _alike([(each.values.dtype, tuple(each.values.shape[1:])) for each in gradients]):
        own = [gradients[place] for place in places]
        together = len(own) > 1 and own[0].values.shape[1:].is_fully_defined()
        merged.update(zip(places, _merge_together(own) if together else map(rows.merge, own), strict=True))
    return [merged[place] for place in range(len(gradients))]


def standardised(gradients: Mapping[str, Any], in_rows: Callable[[Any], bool]) -> dict[str, Any]:
    """Gradients by name, in their order: merged rows of those that travel so, tensors of all others."""
    rowwise = {name: each for name, each in gradients.items() if in_rows(each)}
    merged = dict(zip(rowwise, merge(list(rowwise.values())), strict=True))
    return {name: merged[name] if name in merged else tf.convert_to_tensor(each) for name, each in gradients.items()}


def exchange(
    gradients: Sequence[tf.IndexedSlices],
    segments: Sequence[Segment],
    grid: Grid,
    name: str,
    returns_sum: bool = False,
) -> list[Exchange]:
    """Like `rows.exchange` for each variable, with the same bits; arguments and results as there, one per variable.

    Steps and bytes sent per rank: as for `rows.exchange`, but P - 1 steps for all narrow rows of one dtype and width.
    """
    ended: dict[int, Exchange] = {}
    for places in in_one_message(segments, [each.values.dtype for each in gradients]):
        own, of = [gradients[place] for place in places], [segments[place] for place in places]
        called = f"{name}{places[0]}"
        if len(own) > 1:
            ended.update(zip(places, _exchange_together(own, of, grid, called, returns_sum), strict=True))
        else:
            ended[places[0]] = rows.exchange(own[0], of[0], grid, called, returns_sum)
    return [ended[place] for place in range(len(gradients))]


def _alike(kinds: Sequence[Hashable]) -> list[list[int]]:
    """The positions of items of the same kind, one list per kind, in order."""
    groups: dict[Hashable, list[int]] = {}
    for place, kind in enumerate(kinds):
        groups.setdefault(kind, []).append(place)
    return list(groups.values())


def in_one_message(segments: Sequence[Segment], dtypes: Sequence[tf.DType]) -> list[list[int]]:
    """The groups of variables whose rows travel together: narrow, of one dtype and width, with int32 row numbers."""
    groups = _alike([(dtype, rows.width_of(each)) for each, dtype in zip(segments, dtypes, strict=True)])
    return [part for group in groups for part in _parted(group, segments)]


def _parted(group: list[int], segments: Sequence[Segment]) -> list[list[int]]:
    if rows.width_of(segments[group[0]]) >= NARROW:
        return [[place] for place in group]
    parts, total = [[group[0]]], segments[group[0]].shape[0]
    for place in group[1:]:
        total += segments[place].shape[0]
        if total >= _MOST_ROWS:
            parts.append([])
            total = segments[place].shape[0]
        parts[-1].append(place)
    return parts


def _merge_together(gradients: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
    """Adds up rows with equal indices in each; all have one dtype, and their rows one known form."""
    inner = gradients[0].values.shape[1:]
    lengths = [tf.shape(each.indices)[0] for each in gradients]
    tables = tf.repeat(tf.range(len(gradients), dtype=tf.int64), tf.stack(lengths))
    indices = tf.concat([marked_int32(each.indices, "indices") for each in gradients], 0)
    values = tf.concat([tf.reshape(each.values, [-1, inner.num_elements()]) for each in gradients], 0)
    summed, keys = rows.sum_equal(values, tables * _SPAN + tf.cast(indices, tf.int64))
    owners = tf.cast(tf.math.floordiv(keys + _SPAN // 2, _SPAN), tf.int32)
    own = tf.cast(keys - tf.cast(owners, tf.int64) * _SPAN, tf.int32)
    own_values = tf.dynamic_partition(tf.cast(summed, gradients[0].values.dtype), owners, len(gradients))
    numbers = tf.dynamic_partition(own, owners, len(gradients))
    return [
        tf.IndexedSlices(tf.reshape(mine, [-1, *inner]), indices, each.dense_shape)
        for each, mine, indices in zip(gradients, own_values, numbers, strict=True)
    ]


def _exchange_together(
    gradients: Sequence[tf.IndexedSlices], segments: Sequence[Segment], grid: Grid, name: str, returns_sum: bool
) -> list[Exchange]:
    """Averages the rows of several variables of one dtype and width; see `exchange`.

    A row number outside its variable travels in place of the row's first value, and in its own place stands -1 - the
    variable's number, so that it is not taken for a row of another variable.
    """
    world, count = grid.world, len(segments)
    lengths = [tf.size(each.indices) for each in gradients]
    gathered = world.allgather(_message(gradients, segments, lengths), f"{name}.rows")
    with tf.control_dependencies([_require_inside(gathered, segments)]):
        summed, found = rows.sum_equal(tf.bitcast(gathered[:, 1:], tf.float32), gathered[:, 0])
    starts = tf.constant(_starts(segments))
    owners = tf.searchsorted(starts, found, side="right") - 1
    divisor = 1.0 if returns_sum else float(world.size)
    means = tf.dynamic_partition(tf.cast(summed / divisor, gradients[0].values.dtype), owners, count)
    numbers = tf.dynamic_partition(found - tf.gather(starts, owners), owners, count)
    faults = tf.cast(~tf.reduce_all(tf.math.is_finite(summed), axis=1), tf.int32)
    nonfinite = tf.unstack(tf.math.unsorted_segment_sum(faults, owners, count) > 0)
    sent = [(world.size - 1) * length * 4 * (1 + rows.width_of(segments[0])) for length in lengths]
    chosen = [length * rows.width_of(segments[0]) for length in lengths]
    return [
        Exchange(
            mean=tf.IndexedSlices(tf.reshape(mean, [-1, *of.shape[1:]]), own, tf.constant(of.shape)),
            culprit=functools.partial(rows.culprit, each.values, world.world_rank),
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
    """The rows of all variables, int32 [rows, 1 + width]: the number of each row, then the bits of its values."""
    tables = tf.repeat(tf.range(len(segments)), tf.stack(lengths))
    indices = tf.concat([marked_int32(each.indices, "indices") for each in gradients], 0)
    values = tf.concat([tf.reshape(each.values, [-1, rows.width_of(segments[0])]) for each in gradients], 0)
    bits = tf.bitcast(tf.cast(values, tf.float32), tf.int32)
    heights = tf.constant([each.shape[0] for each in segments], tf.int32)
    inside = (indices >= 0) & (indices < tf.gather(heights, tables))
    numbers = tf.where(inside, indices + tf.gather(tf.constant(_starts(segments)), tables), -1 - tables)
    first = tf.where(inside, bits[:, 0], indices)
    return tf.concat([numbers[:, tf.newaxis], first[:, tf.newaxis], bits[:, 1:]], 1)


def _starts(segments: Sequence[Segment]) -> np.ndarray:
    """The number of rows before those of each variable."""
    return np.cumsum([0, *(each.shape[0] for each in segments[:-1])]).astype(np.int32)


def _require_inside(gathered: tf.Tensor, segments: Sequence[Segment]) -> tf.Operation:
    """Raises if an index is outside its variable; every rank checks all of them and reports the first variable."""
    told = [rows.outside_told(each) for each in segments]
    outside = tf.boolean_mask(gathered[:, :2], gathered[:, 0] < 0)
    named = tf.maximum(tf.reduce_max(outside[:, 0]), -len(segments))  # of the first variable that has one
    its = tf.boolean_mask(outside[:, 1], tf.equal(outside[:, 0], named))
    return tf.debugging.Assert(tf.equal(tf.size(outside), 0), [tf.gather(tf.constant(told), -1 - named), its])
