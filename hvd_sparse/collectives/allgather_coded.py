"""All-gathers of quantized values."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.collectives.allgather_sum import count
from hvd_sparse.compression.base import Coded
from hvd_sparse.compression.quantizers import Where
from hvd_sparse.transport.communicator import Communicator

_HEADER_BYTES = 16


def allgather_coded(
    slices: tf.IndexedSlices, coded: Coded, communicator: Communicator, name: str = "allgather_coded"
) -> tf.IndexedSlices:
    """Like `allgather_sum`, with quantized values: indices, scales and codes travel in one message.

    Args:
        slices: indices [k] int32, and the values [k] float32 that the codes decode to.
        coded: the quantized values, by a quantizer whose `by_place` is False.
        communicator: the ranks that take part; k is the same on all of them.
        name: the same on every rank, unique among the collectives in flight.

    Returns:
        Values [P * k] float32 and indices, rank after rank, as from `allgather_sum`.

    Steps and bytes sent per rank: P - 1 and (P - 1) times 4 k, 4 bytes per scale and the codes, rounded up to 4.
    """
    if communicator.size == 1:
        return slices
    kept, codes, scales = count(slices), *coded[:2]
    message = tf.concat([slices.indices, tf.bitcast(scales, tf.int32), _words(codes)], 0)
    known = message.shape[0]
    lengths = None if known is None else [known] * communicator.size
    rows = tf.reshape(communicator.allgather(message, name, lengths), [communicator.size, -1])
    indices, scaled, words = tf.split(rows, [kept, tf.size(scales), tf.shape(rows)[1] - kept - tf.size(scales)], 1)
    bytes_of_rows = tf.reshape(tf.bitcast(words, tf.uint8), [communicator.size, -1])[:, : tf.size(codes)]
    values = coded.quantizer.decode_rows(bytes_of_rows, tf.bitcast(scaled, tf.float32), kept)
    return tf.IndexedSlices(values, tf.reshape(indices, [-1]), slices.dense_shape)


def allgather_coded_counted(
    slices: tf.IndexedSlices,
    coded: Coded,
    nonfinite: tf.Tensor,
    communicator: Communicator,
    name: str = "allgather_coded_counted",
) -> tuple[tf.IndexedSlices, tf.Tensor]:
    """Like `allgather_counted`, with values quantized by any quantizer.

    A message begins with the number of elements, whether something is not finite, the number of scales and the number
    of bytes of codes.

    Args:
        slices: unique indices [k] int32, and the values [k] float32 that the codes decode to; k may differ between
            ranks and be 0.
        coded: the quantized values.
        nonfinite: [] bool, whether what this rank sends is invalid.
        communicator: the ranks that take part.
        name: the same on every rank, unique among the collectives in flight.

    Returns:
        Values [sum of k] float32 and indices, rank after rank, as from `allgather_sum`; and whether any rank's are
        invalid, [] bool, the same on every rank.

    Raises:
        tf.errors.InvalidArgumentError: if the received data are not one message of this quantizer from each rank.

    Steps and bytes sent per rank: P - 1 and (P - 1) times 16, 4 k, 4 bytes per scale and the codes, rounded up to 4.
    """
    if communicator.size == 1:
        return slices, nonfinite
    codes, scales, quantizer, matrices = coded
    header = tf.stack([tf.size(slices.indices), tf.cast(nonfinite, tf.int32), tf.size(scales), tf.size(codes)])
    message = tf.concat([header, slices.indices, tf.bitcast(scales, tf.int32), _words(codes)], 0)
    *parts, lengths, told = ops.library().hvd_sparse_unpack_coded(
        messages=communicator.allgather(message, name), ranks=communicator.size
    )
    ranks = zip(*(tf.split(part, length) for part, length in zip(parts, tf.unstack(lengths), strict=True)), strict=True)
    values = [
        quantizer.decode(own_codes, own_scales, tf.size(indices), Where(indices, matrices))
        for indices, own_scales, own_codes in ranks
    ]
    return tf.IndexedSlices(tf.concat(values, 0), parts[0], slices.dense_shape), told


def coded_bytes(slices: tf.IndexedSlices, coded: Coded) -> int | tf.Tensor:
    """Bytes of the message with these indices, scales and codes."""
    indices, scales, codes = (_length(part) for part in (slices.indices, coded.scales, coded.codes))
    return 4 * indices + 4 * scales + (codes + 3) // 4 * 4


def coded_counted_bytes(slices: tf.IndexedSlices, coded: Coded) -> int | tf.Tensor:
    """Bytes of the message with these indices, scales and codes, and their lengths."""
    return _HEADER_BYTES + coded_bytes(slices, coded)


def _length(vector: tf.Tensor) -> int | tf.Tensor:
    return tf.size(vector) if vector.shape[0] is None else vector.shape[0]


def _words(codes: tf.Tensor) -> tf.Tensor:
    """Bytes as int32, padded with zeros."""
    padded = tf.pad(codes, [[0, -tf.size(codes) % 4]])
    words = tf.bitcast(tf.reshape(padded, [-1, 4]), tf.int32)
    return tf.ensure_shape(words, [None if codes.shape[0] is None else (codes.shape[0] + 3) // 4])
