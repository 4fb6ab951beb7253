"""Sparse streams: vectors with some rows present, as messages, and how messages are combined (SparCML 5.1).

A vector has `size` rows of `width` elements; a flat one has width 1. A row that is absent is the operation's neutral
element: 0 for "sum", -inf for "max", +inf for "min", 1 for "product". A message is an int32 tensor [words], sparse or
dense, whose content ops/streams/merge.h describes; its length is even and follows from its content, so messages may
lie one after another in one tensor. Size, width, dtype and operation are not sent: all ranks must pass the same.

Every element of a result is ((neutral o x_0) o x_1) o ... in the order of the x_j or of the messages, whatever the form
of the messages; so a single -0 becomes +0 in a sum. float16 is computed in float32 and rounded after each operation.

A message is dense if it has more than `dense_above` rows, by default `delta`. The exact number of rows in the result
decides; the paper uses an upper bound, the sum of the counts. With that bound, the form would depend on the algorithm
and the number of ranks, and identical index sets would turn dense needlessly. The exact number costs a pass over the
indices, and only if the sum exceeds `dense_above`.

Invalid arguments and messages raise `ValueError` or `TypeError` when a graph is built, and
`tf.errors.InvalidArgumentError` when an operation runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.indices import as_int32

DTYPES = (tf.float16, tf.float32, tf.float64)
OPERATIONS = ("sum", "max", "min", "product")
_INDEX_BYTES = 4


def delta(size: int, width: int, dtype: tf.DType) -> int:
    """The largest number of rows at which a sparse message is no longer than a dense one (SparCML 5.1).

    Args:
        size: rows of the vector.
        width: elements per row.
        dtype: dtype of the elements.

    Returns:
        floor(size * r / (4 + r)), where r is the bytes per row and 4 the bytes of its index.

    Raises:
        ValueError: if size or width is invalid.
    """
    if size < 0 or width < 1:
        raise ValueError(f"Expected a size of at least 0 and a width of at least 1, got size {size} and width {width}.")
    row = width * _dtype(dtype).size
    return size * row // (_INDEX_BYTES + row)


def piece_sizes(size: int, parts: int) -> list[int]:
    """The number of rows in each piece of a vector: piece p begins at floor(p * size / parts)."""
    return [(part + 1) * size // parts - part * size // parts for part in range(parts)]


def pack(
    values: tf.Tensor, indices: tf.Tensor, size: int, op: str = "sum", dense_above: int | tf.Tensor | None = None
) -> tf.Tensor:
    """Packs rows into a message.

    Args:
        values: [k] or [k, ...] float16, float32 or float64; the width is the product of the dimensions after the first,
            which must be known.
        indices: [k] int32 or int64 in any order. Rows of the same index are combined in their order. Ascending, unique
            indices are the fast path.
        size: rows of the vector; size * width < 2^31.
        op: "sum", "max", "min" or "product".
        dense_above: rows; `delta` by default.

    Returns:
        int32 [words].

    Raises:
        tf.errors.InvalidArgumentError: if an index is outside [0, size), or shapes do not match.
    """
    values = tf.convert_to_tensor(values)
    width = _width(values.shape)
    return ops.library().hvd_stream_pack(
        values=tf.reshape(values, [-1, width]),
        indices=as_int32(indices, "indices"),
        size=size,
        dense_above=_limit(dense_above, size, width, values.dtype),
        combine=_operation(op),
    )


def split(
    message: tf.Tensor,
    size: int,
    width: int,
    dtype: tf.DType,
    parts: int,
    op: str = "sum",
    dense_above: Sequence[int] | tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts a vector into pieces of consecutive rows (SparCML 5.3.2, the split phase).

    Args:
        message: int32 [words].
        size: rows of the vector.
        width: elements per row.
        dtype: dtype of the elements.
        parts: the number of pieces; piece p has rows [floor(p * size / parts), floor((p + 1) * size / parts)), and its
            indices count from its own beginning.
        op: "sum", "max", "min" or "product".
        dense_above: rows [parts]; each piece's own `delta` by default.

    Returns:
        The pieces' messages, one after another, int32 [words], and the words of each, int32 [parts].

    Raises:
        tf.errors.InvalidArgumentError: if the message is not one of this size, width and dtype.
    """
    if parts < 1:
        raise ValueError(f"Expected at least 1 part, got {parts}.")
    if dense_above is None:
        dense_above = [delta(piece, width, dtype) for piece in piece_sizes(size, parts)]
    limits = tf.cast(tf.convert_to_tensor(dense_above), tf.int64)
    if not limits.shape.is_compatible_with([parts]):
        raise ValueError(f"Expected dense_above of {parts} parts, got shape {limits.shape}.")
    return ops.library().hvd_stream_split(
        message=message, size=size, width=width, dense_above=limits, T=_dtype(dtype), combine=_operation(op)
    )


def reduce(
    messages: tf.Tensor,
    size: int,
    width: int,
    dtype: tf.DType,
    op: str = "sum",
    dense_above: int | tf.Tensor | None = None,
    before: int = 0,
) -> tf.Tensor:
    """Combines messages of the same vector, in their order, in one pass over all of them (SparCML 5.1).

    Args:
        messages: int32 [words], at least one message, one after another.
        size: rows of the vector.
        width: elements per row.
        dtype: dtype of the elements.
        op: "sum", "max", "min" or "product".
        dense_above: rows; `delta` by default.
        before: other words that stand before each message; even.

    Returns:
        int32 [words].

    Raises:
        tf.errors.InvalidArgumentError: if a message is not one of this size, width and dtype.
    """
    return ops.library().hvd_stream_reduce(
        messages=messages,
        size=size,
        width=width,
        before=before,
        dense_above=_limit(dense_above, size, width, dtype),
        T=_dtype(dtype),
        combine=_operation(op),
    )


def concat(
    messages: tf.Tensor,
    size: int,
    width: int,
    dtype: tf.DType,
    parts: int,
    op: str = "sum",
    dense_above: int | tf.Tensor | None = None,
) -> tf.Tensor:
    """Joins the pieces of a vector; the reverse of `split`.

    Args:
        messages: int32 [words], the messages of all pieces in order.
        size: rows of the whole vector.
        width: elements per row.
        dtype: dtype of the elements.
        parts: the number of pieces.
        op: "sum", "max", "min" or "product".
        dense_above: rows; `delta` of the whole vector by default.

    Returns:
        int32 [words].

    Raises:
        tf.errors.InvalidArgumentError: if there are fewer or more messages, or one is not that of its piece.
    """
    return ops.library().hvd_stream_concat(
        messages=messages,
        size=size,
        width=width,
        dense_above=_limit(dense_above, size, width, dtype),
        parts=parts,
        T=_dtype(dtype),
        combine=_operation(op),
    )


def dense(
    message: tf.Tensor,
    size: int,
    width: int,
    dtype: tf.DType,
    op: str = "sum",
    divisor: float | tf.Tensor = 1,
) -> tf.Tensor:
    """Unpacks a message into the whole vector.

    Args:
        message: int32 [words].
        size: rows of the vector.
        width: elements per row.
        dtype: dtype of the elements.
        op: "sum", "max", "min" or "product".
        divisor: the divisor of the rows that are present, applied once, in float32 for float16 and float32.

    Returns:
        [size, width] of dtype; absent rows are neutral.

    Raises:
        tf.errors.InvalidArgumentError: if the message is not one of this size, width and dtype.
    """
    return ops.library().hvd_stream_dense(
        message=message,
        size=size,
        width=width,
        divisor=tf.cast(divisor, tf.float64),
        T=_dtype(dtype),
        combine=_operation(op),
    )


def slices(message: tf.Tensor, size: int, width: int, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """Unpacks the rows that are present in a message.

    Args:
        message: int32 [words].
        size: rows of the vector.
        width: elements per row.
        dtype: dtype of the elements.

    Returns:
        Values [count, width] of dtype and indices [count] int32, ascending and unique; all rows of a dense message.

    Raises:
        tf.errors.InvalidArgumentError: if the message is not one of this size, width and dtype.
    """
    return ops.library().hvd_stream_slices(message=message, size=size, width=width, T=_dtype(dtype))


def _limit(dense_above: int | tf.Tensor | None, size: int, width: int, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(delta(size, width, dtype) if dense_above is None else dense_above, tf.int64)


def _width(shape: tf.TensorShape) -> int:
    width = shape[1:].num_elements() if shape.rank else None
    if width is None:
        raise ValueError(f"Expected values [k] or [k, ...] whose dimensions after the first are known, got {shape}.")
    if width == 0:
        raise ValueError(f"Expected rows of at least one element, got values of shape {shape}.")
    return width


def _dtype(dtype: tf.DType) -> tf.DType:
    given = tf.as_dtype(dtype)
    if given not in DTYPES:
        raise TypeError(f"Expected a stream of float16, float32 or float64, got {given.name}; cast it first.")
    return given


def _operation(op: str) -> str:
    if op not in OPERATIONS:
        raise ValueError(f"Expected op to be one of {', '.join(map(repr, OPERATIONS))}, got {op!r}.")
    return op
