"""DSAR_Split_allgather: pieces are combined sparse and gathered dense, in low precision if desired."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from hvd_sparse.collectives.prepared import Layout, Prepared, prepare
from hvd_sparse.collectives.split_allgather import own_piece
from hvd_sparse.compression.quantizers import Quantizer
from hvd_sparse.transport.communicator import REDUCTIONS, Communicator


class QuantizedTotal(NamedTuple):
    """A sum that was gathered in low precision.

    Attributes:
        total: tensor of the dense shape, the same bits on every rank.
        error: [own rows * width] float32, the rounding error of this rank's piece, to be passed to the next call.
        culprit: [] int32, 0, or 1 + the world rank whose piece held a NaN or an infinity; the same on every rank. That
            piece is then invalid.
    """

    total: tf.Tensor
    error: tf.Tensor
    culprit: tf.Tensor


def own_rows(size: int, communicator: Communicator) -> int:
    """The number of rows that this rank combines for all ranks, which is also that of its rounding error."""
    return Layout(size, (), tf.float32, "sum", None).rows_of(communicator.rank, communicator.size)


def dynamic(
    slices: tf.IndexedSlices,
    communicator: Communicator,
    op: str = "sum",
    name: str = "dynamic",
    dense_above: int | None = None,
    quantizer: Quantizer | None = None,
) -> tf.Tensor:
    """Combines the slices of all ranks if the result fills in (SparCML 5.3.3, DSAR_Split_allgather, and section 6).

    Args:
        slices: this rank's contribution, see `hvd_sparse.collectives`.
        communicator: the ranks that take part.
        op: "sum", "max", "min" or "product".
        name: the same on every rank, unique among the collectives in flight.
        dense_above: rows above which a message of the whole vector is dense; for a piece, its share of them.
        quantizer: encodes the values that are gathered, with seed 0, and drops the rounding error; only for sums. For
            repeated calls, `dynamic_quantized` keeps the error.

    Returns:
        A tensor of the dense shape. With a quantizer, every rank, including the owner of a piece, gets the decoded
        values. Rows are combined in rank order.

    Raises:
        ValueError: on every rank, if any rank's slices are invalid or the ranks' calls differ.
        tf.errors.InvalidArgumentError: on every rank, if values that are to be quantized are not finite.

    Steps and bytes sent per rank: P - 1 to split and P - 1 to gather (as a ring); at most k rows of 4 bytes and their
    values (a piece for which that is more than all its values travels dense), and (P - 1) / P of all values or codes.
    In eager code, if each rank contributes so many rows that they would travel dense, vectors are all-reduced, in as
    many steps and bytes; an element that is -0 on all ranks may then be -0.
    """
    if quantizer is None:
        prepared = prepare("dynamic", slices, communicator, op, name, dense_above)
        return prepared.vector(combine_prepared(prepared, communicator, name))
    none = tf.zeros([0], tf.float32)
    quantized = dynamic_quantized(slices, communicator, quantizer, none, 0, name, dense_above, op)
    told = f"{name}: expected finite values, as only these can be quantized; got others in the piece of rank"
    with tf.control_dependencies([tf.debugging.Assert(quantized.culprit == 0, [told, quantized.culprit - 1])]):
        return tf.identity(quantized.total)


def dynamic_quantized(
    slices: tf.IndexedSlices,
    communicator: Communicator,
    quantizer: Quantizer,
    error: tf.Tensor,
    seed: int | tf.Tensor,
    name: str = "dynamic_quantized",
    dense_above: int | None = None,
    op: str = "sum",
) -> QuantizedTotal:
    """`dynamic` in low precision, where the owner of each piece keeps the rounding error (SparCML section 6).

    Args:
        slices: this rank's contribution, see `hvd_sparse.collectives`.
        communicator: the ranks that take part.
        quantizer: encodes the values that are gathered; its number of scales must not depend on their positions.
        error: [own_rows * width] float32, the rounding error of earlier calls; or [0] for none.
        seed: [], seed of the rounding, the same on every rank and different for each call.
        name: the same on every rank, unique among the collectives in flight.
        dense_above: as for `dynamic`.
        op: must be "sum".

    Returns:
        The sum as every rank decodes it, and this rank's new error: the sum of all slices and errors == total + new
        errors, up to the rounding of float32.

    Raises:
        ValueError: on every rank, if any rank's slices are invalid or the ranks' calls differ.

    Steps and bytes sent per rank: those of `dynamic`, where codes and 4 bytes per scale are gathered.
    """
    prepared = prepare(f"dynamic with {quantizer!r}", slices, communicator, op, name, dense_above)
    if op != "sum":
        raise ValueError(f"{name}: expected op 'sum' with a quantizer, got {op!r}: only sums can be quantized.")
    check_of_sums(quantizer)
    quantized = combine_quantized(prepared.layout, prepared.message, quantizer, error, seed, communicator, name)
    return quantized._replace(total=prepared.vector(tf.cast(quantized.total, prepared.layout.dtype)))


def check_of_sums(quantizer: Quantizer) -> None:
    """Raises ValueError if a quantizer cannot encode dense sums."""
    if quantizer.by_place:
        raise ValueError(
            f"Expected a quantizer of sums whose scales do not depend on places, such as QSGD(4), got {quantizer!r}: "
            "quantize what each rank sends with ErrorFeedback(Quantized(compressor, quantizer))."
        )


def combine_quantized(
    layout: Layout,
    message: tf.Tensor,
    quantizer: Quantizer,
    error: tf.Tensor,
    seed: int | tf.Tensor,
    communicator: Communicator,
    name: str,
) -> QuantizedTotal:
    """The same for messages; the total is [size * width] float32."""
    values = tf.cast(tf.reshape(_own_values(layout, message, communicator, name), [-1]), tf.float32)
    error = tf.convert_to_tensor(error, tf.float32)
    values = values if error.shape[0] == 0 else values + tf.ensure_shape(error, values.shape)
    finite = tf.reduce_all(tf.math.is_finite(values * quantizer.headroom))
    values = tf.where(finite, values, 0.0)
    codes, scales = quantizer.encode(values, tf.cast(seed, tf.int64) * communicator.size + communicator.rank)
    decoded = quantizer.decode(codes, scales, layout.rows_of(communicator.rank, communicator.size) * layout.width)
    # A NaN scale tells all ranks, without another message, that a piece is invalid.
    scales = tf.where(finite, scales, float("nan"))
    total, culprit = _gather_codes(layout, codes, scales, quantizer, communicator, name)
    return QuantizedTotal(total, values - decoded, culprit)


def combine_prepared(prepared: Prepared, communicator: Communicator, name: str) -> tf.Tensor:
    """The vector [size, width] combined from the contributions of all ranks."""
    if prepared.full and prepared.layout.op in REDUCTIONS:
        return communicator.allreduce(prepared.dense(), prepared.layout.op, f"{name}.reduce")
    return combine_dense(prepared.layout, prepared.message, communicator, name)


def combine_dense(layout: Layout, message: tf.Tensor, communicator: Communicator, name: str) -> tf.Tensor:
    """The vector [size, width] combined from the messages of all ranks."""
    own = _own_values(layout, message, communicator, name)
    rows = [layout.rows_of(part, communicator.size) for part in range(communicator.size)]
    return communicator.allgather(own, f"{name}.gather", rows)


def _own_values(layout: Layout, message: tf.Tensor, communicator: Communicator, name: str) -> tf.Tensor:
    """This rank's piece of the vector, [rows, width]."""
    mine = layout.piece(communicator.rank, communicator.size)
    return mine.dense(own_piece(layout, message, communicator, name))


def _gather_codes(
    layout: Layout, codes: tf.Tensor, scales: tf.Tensor, quantizer: Quantizer, communicator: Communicator, name: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """The vector [size * width] float32 as all ranks decode it, and 0 or 1 + the world rank whose piece is invalid."""
    counts = [layout.rows_of(part, communicator.size) * layout.width for part in range(communicator.size)]
    shapes = [(quantizer.code_bytes(count), quantizer.scale_count(count)) for count in counts]
    own = tf.concat([codes, tf.reshape(tf.bitcast(scales, tf.uint8), [-1])], 0)
    gathered = communicator.allgather(own, f"{name}.gather", [coded + 4 * scaled for coded, scaled in shapes])
    decoded, culprits = [], []
    parts = tf.split(gathered, [length for coded, scaled in shapes for length in (coded, 4 * scaled)])
    for part, count in enumerate(counts):
        scale = tf.bitcast(tf.reshape(parts[2 * part + 1], [-1, 4]), tf.float32)
        nonfinite = tf.math.is_nan(scale)
        decoded.append(quantizer.decode(parts[2 * part], tf.where(nonfinite, 0.0, scale), count))
        culprits.append(tf.where(tf.reduce_any(nonfinite), 1 + communicator.ranks[part], 0))
    return tf.concat(decoded, 0), tf.reduce_max(tf.stack(culprits))
