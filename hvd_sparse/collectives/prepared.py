"""Prepares the input of a collective: it is checked, agreed on by all ranks, and packed as a stream (SparCML 5.1)."""

from __future__ import annotations

import json
import math
import zlib
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from hvd_sparse.collectives import streams
from hvd_sparse.transport.communicator import Communicator

Result: TypeAlias = "tf.IndexedSlices | tf.Tensor"

HEAD = 4  # words before each message that travels with a greeting; even, as messages begin at even words

_INDICES = (tf.int32, tf.int64)
_PIECE = 1 << 14


class Layout(NamedTuple):
    """The vector that a collective combines, the same on every rank.

    Attributes:
        size: the number of rows.
        row: the shape of a row, () for a flat vector.
        dtype: dtype of the elements.
        op: how rows are combined.
        given: the caller's `dense_above`, or None.
    """

    size: int
    row: tuple[int, ...]
    dtype: tf.DType
    op: str
    given: int | None

    @property
    def width(self) -> int:
        """Elements per row."""
        return math.prod(self.row)

    @property
    def dense_above(self) -> int:
        """Rows above which a message is dense."""
        return streams.delta(self.size, self.width, self.dtype) if self.given is None else self.given

    def rows_of(self, part: int, parts: int) -> int:
        """The number of rows in piece `part` of `parts`."""
        return streams.piece_sizes(self.size, parts)[part]

    def piece(self, part: int, parts: int) -> Layout:
        """The layout of piece `part` of `parts`."""
        rows = self.rows_of(part, parts)
        given = None if self.given is None else self.given * rows // max(self.size, 1)
        return self._replace(size=rows, given=given)

    def pack(self, values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        """Packs rows in any order into a message."""
        flat = tf.reshape(values, [-1, self.width])
        return streams.pack(flat, tf.cast(indices, tf.int32), self.size, self.op, self.given)

    def split(self, message: tf.Tensor, parts: int) -> tuple[tf.Tensor, tf.Tensor]:
        """The messages of all pieces, one after another, and the words of each, [parts] int32."""
        limits = [self.piece(part, parts).dense_above for part in range(parts)]
        return streams.split(message, self.size, self.width, self.dtype, parts, self.op, limits)

    def reduce(self, messages: tf.Tensor, before: int = 0) -> tf.Tensor:
        """Combines several messages of this vector into one; `before` other words stand before each."""
        return streams.reduce(messages, self.size, self.width, self.dtype, self.op, self.given, before)

    def concat(self, messages: tf.Tensor, parts: int) -> tf.Tensor:
        """Joins the messages of all pieces into one."""
        return streams.concat(messages, self.size, self.width, self.dtype, parts, self.op, self.given)

    def dense(self, message: tf.Tensor) -> tf.Tensor:
        """The vector in a message, [size, width]."""
        return streams.dense(message, self.size, self.width, self.dtype, self.op)

    def shaped(self, vector: tf.Tensor) -> tf.Tensor:
        """The vector in the caller's dense shape."""
        return tf.reshape(vector, [self.size, *self.row])


class Prepared(NamedTuple):
    """One rank's rows, after all ranks have agreed on the call.

    Attributes:
        slices: the caller's slices.
        layout: the layout of the vector.
        packed: the message with all rows of this rank; None if they are the vector itself, all rows in order.
        counts: [P], the rows in each rank's message; None in a graph.
        checks: operations that must run before a result may be used.
        gathered: the messages of all ranks, HEAD words before each, if every rank sent its own with its greeting.
    """

    slices: tf.IndexedSlices
    layout: Layout
    packed: tf.Tensor | None
    counts: np.ndarray | None
    checks: tuple[Any, ...]
    gathered: tf.Tensor | None = None

    @property
    def message(self) -> tf.Tensor:
        """The message with all rows of this rank."""
        return self.layout.pack(self.slices.values, self.slices.indices) if self.packed is None else self.packed

    @property
    def full(self) -> bool:
        """Whether every rank is known to have so many rows that they would travel dense; the same on all ranks."""
        return self.counts is not None and bool(self.counts.min() >= self.layout.dense_above)

    def dense(self) -> tf.Tensor:
        """All rows of this rank as a vector [size, width]."""
        if self.packed is None:
            return tf.reshape(self.slices.values, [-1, self.layout.width])
        return self.layout.dense(self.packed)

    def result(self, message: tf.Tensor) -> Result:
        """The caller's result from the combined message: slices, or a tensor if it is dense and code is eager."""
        if tf.executing_eagerly() and np.asarray(message)[0] == 1:
            return self.vector(self.layout.dense(message))
        with tf.control_dependencies(self.checks):
            values, indices = streams.slices(message, self.layout.size, self.layout.width, self.layout.dtype)
        shaped = tf.reshape(values, [-1, *self.layout.row])
        return tf.IndexedSlices(shaped, tf.cast(indices, self.slices.indices.dtype), self.slices.dense_shape)

    def vector(self, vector: tf.Tensor) -> tf.Tensor:
        """The caller's result from the combined vector [size, width]."""
        with tf.control_dependencies(self.checks):
            return self.layout.shaped(tf.identity(vector))


def prepare(
    collective: str,
    slices: tf.IndexedSlices,
    communicator: Communicator,
    op: str,
    name: str,
    dense_above: int | None,
    along: int = -1,
) -> Prepared:
    """Checks and packs slices, and checks that all ranks' calls agree; a collective.

    Args:
        collective: the name of the collective, which has to be the same on every rank.
        slices: this rank's contribution.
        communicator: the ranks that take part.
        op: one of `streams.OPERATIONS`.
        name: the same on every rank, unique among the collectives in flight.
        dense_above: rows above which a message is dense, or None.
        along: rows up to which a message travels to all ranks with the greeting, in eager code.

    Raises:
        ValueError: on every rank, if any rank's slices are invalid or the ranks' calls differ.
    """
    eager = tf.executing_eagerly()
    fault = _fault(slices, op, dense_above)
    whole = eager and not fault and _is_whole(slices)
    if eager and not fault and not whole:
        fault = _index_fault(slices)
    layout = None if fault else _layout(slices, op, dense_above)
    whole = whole and slices.indices.shape[0] > along
    packed = layout.pack(slices.values, slices.indices) if layout and eager and not whole else None
    told = {} if layout is None else _describe(collective, layout)
    rows = _row_count(layout, packed, whole)
    sent = packed if rows <= along else None
    greeted = _greet(told, fault, rows, sent, communicator, name)
    assert layout is not None, "the ranks have been told of the fault"
    if eager:
        return Prepared(slices, layout, packed, greeted.counts, (), greeted.gathered)
    if communicator.size == 1:
        return Prepared(slices, layout, layout.pack(slices.values, slices.indices), None, ())
    indices, check = _bounded(slices.indices, layout.size, communicator, name)
    return Prepared(slices, layout, layout.pack(slices.values, indices), None, (check,))


class _Greeted(NamedTuple):
    """The result of the greeting, see `Prepared`."""

    counts: np.ndarray
    gathered: tf.Tensor | None


def _greet(
    told: dict[str, Any],
    fault: str | None,
    rows: int,
    message: tf.Tensor | None,
    communicator: Communicator,
    name: str,
) -> _Greeted:
    """Tells all ranks whether one of them has a fault or a different call, and how many rows each has."""
    if communicator.size == 1:
        if fault:
            raise ValueError(f"{name}: {fault}")
        return _Greeted(np.array([rows], np.int32), None)
    mark = zlib.crc32(json.dumps(told, sort_keys=True).encode()) - 2**31  # as an int32
    words = 0 if message is None else int(message.shape[0])
    with tf.init_scope():
        head = tf.constant([int(fault is not None), mark, rows, words], tf.int32)
        greeting = head if message is None else tf.concat([head, message], 0)
        gathered = communicator.allgather(greeting, f"{name}.greeting")
    everyone = _heads(np.asarray(gathered), communicator.size)
    if everyone[:, 0].any():
        faults = communicator.gather_descriptions(fault, f"{name}.faults")
        by_rank = [f"rank {rank}: {text}" for rank, text in zip(communicator.ranks, faults, strict=True) if text]
        raise ValueError(f"{name}: {'; '.join(by_rank)}")
    if (everyone[:, 1] != everyone[0, 1]).any():
        communicator.agree(told, f"the collective {name}", f"{name}.disagreement")
    return _Greeted(everyone[:, 2], gathered if everyone[:, 3].all() else None)


def _heads(words: np.ndarray, ranks: int) -> np.ndarray:
    """The words before the message of each rank, [P, HEAD]."""
    heads, at = [], 0
    for _ in range(ranks):
        heads.append(words[at : at + HEAD])
        at += HEAD + int(words[at + 3])
    return np.stack(heads)


def _row_count(layout: Layout | None, packed: tf.Tensor | None, whole: bool) -> int:
    """The number of this rank's rows, -1 if it is not known yet."""
    if layout is not None and whole:
        return layout.size
    return -1 if packed is None else int(np.asarray(packed)[1])


def _describe(collective: str, layout: Layout) -> dict[str, Any]:
    return {
        "collective": collective,
        "shape": [layout.size, *layout.row],
        "dtype": layout.dtype.name,
        "op": layout.op,
        "dense_above": layout.dense_above,
    }


def _layout(slices: tf.IndexedSlices, op: str, dense_above: int | None) -> Layout:
    size, *row = (int(extent) for extent in tf.get_static_value(slices.dense_shape))
    return Layout(size, tuple(row), tf.as_dtype(slices.values.dtype), op, dense_above)


def _fault(slices: Any, op: str, dense_above: int | None) -> str | None:
    """What is wrong with a rank's arguments, as far as that is known now; None if nothing is."""
    if op not in streams.OPERATIONS:
        return f"expected op to be one of {', '.join(streams.OPERATIONS)}, got {op!r}"
    if dense_above is not None and (isinstance(dense_above, bool) or not isinstance(dense_above, int)):
        return f"expected dense_above to be a number of rows or None, got {dense_above!r}"
    if dense_above is not None and dense_above < 0:
        return f"expected dense_above to be at least 0, got {dense_above}"
    if not isinstance(slices, tf.IndexedSlices):
        return f"expected tf.IndexedSlices, got {type(slices).__name__}"
    if slices.values.dtype not in streams.DTYPES:
        return f"expected values of float16, float32 or float64, got {slices.values.dtype.name}; cast them first"
    if slices.indices.dtype not in _INDICES:
        return f"expected indices of int32 or int64, got {slices.indices.dtype.name}"
    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    if shape is None:
        return (
            "expected slices whose dense_shape is known when the collective is called, got none: pass "
            "tf.IndexedSlices(values, indices, dense_shape) with a dense_shape that is a constant"
        )
    return _shape_fault(slices, [int(extent) for extent in shape])


def _shape_fault(slices: tf.IndexedSlices, shape: list[int]) -> str | None:
    values, indices = slices.values.shape, slices.indices.shape
    if not shape or 0 in shape[1:]:
        return f"expected a dense_shape [size, ...] whose rows have elements, got {shape}"
    if math.prod(shape) >= 2**31:
        return f"expected fewer than 2^31 elements, got a dense_shape of {shape}; cut the vector into several"
    if not indices.is_compatible_with([None]):
        return f"expected indices [k], got shape {indices}"
    if not values.is_compatible_with([indices[0] if indices.rank else None, *shape[1:]]):
        return f"expected values {['k', *shape[1:]]} for {indices} indices and a dense_shape of {shape}, got {values}"
    return None


def _is_whole(slices: tf.IndexedSlices) -> bool:
    """Whether the indices are 0, 1, 2 and so on for all rows; reads each once, in pieces that fit in a cache."""
    numbers = np.asarray(slices.indices)  # does not copy, unlike numpy()
    if not len(numbers) or len(numbers) != int(tf.get_static_value(slices.dense_shape)[0]):
        return False
    counted = np.arange(min(len(numbers), _PIECE), dtype=numbers.dtype)
    for begin in range(0, len(numbers), _PIECE):
        piece = numbers[begin : begin + _PIECE]
        if not np.array_equal(piece - begin, counted[: len(piece)]):
            return False
    return True


def _index_fault(slices: tf.IndexedSlices) -> str | None:
    numbers, size = np.asarray(slices.indices), int(tf.get_static_value(slices.dense_shape)[0])
    if not len(numbers) or (numbers.min() >= 0 and numbers.max() < size):
        return None
    place = np.flatnonzero((numbers < 0) | (numbers >= size))[0]
    return f"expected indices in [0, {size}), got {numbers[place]} at position {place}"


def _bounded(indices: tf.Tensor, size: int, communicator: Communicator, name: str) -> tuple[tf.Tensor, Any]:
    """Indices that can be packed, and an operation that fails on every rank if any rank's are out of range."""
    inside = tf.reduce_all((indices >= 0) & (indices < size))
    fault = communicator.allreduce(tf.where(inside, 0, communicator.world_rank + 1), "max", f"{name}.faults")
    told = f"{name}: expected indices in [0, {size}); got others on rank"
    return tf.where(inside, indices, 0), tf.debugging.Assert(fault == 0, [told, fault - 1])
