"""The all-gather of values in a few bits each."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.collectives.allgather_sum import count
from hvd_sparse.compression.quantizers import QSGD
from hvd_sparse.transport.communicator import Communicator


def allgather_coded(
    slices: tf.IndexedSlices,
    codes: tf.Tensor,
    scales: tf.Tensor,
    quantizer: QSGD,
    communicator: Communicator,
    name: str = "allgather_coded",
) -> tf.IndexedSlices:
    """As `allgather_sum`, with codes in place of the values: indices, scales and codes in one message.

    Args:
        slices: indices [k] int32, and the values [k] float32 that the codes stand for.
        codes: of the values, see `QSGD`.
        scales: of the values.
        quantizer: what made them, the same on every rank.
        communicator: the ranks that take part; k is the same on all of them.
        name: the same on every rank, unique among the collectives in flight.

    Returns:
        Values [P * k] float32 and indices, rank after rank, as `allgather_sum` gives them.

    Steps and bytes sent per rank: P - 1 and (P - 1) times 4 k, 4 bytes a scale and the codes, rounded up to 4.
    """
    if communicator.size == 1:
        return slices
    kept = count(slices)
    message = tf.concat([slices.indices, tf.bitcast(scales, tf.int32), _words(codes)], 0)
    known = message.shape[0]
    lengths = None if known is None else [known] * communicator.size
    rows = tf.reshape(communicator.allgather(message, name, lengths), [communicator.size, -1])
    values = _decoded(rows[:, kept:], tf.size(scales), kept, quantizer)
    return tf.IndexedSlices(values, tf.reshape(rows[:, :kept], [-1]), slices.dense_shape)


def coded_bytes(slices: tf.IndexedSlices, codes: tf.Tensor, scales: tf.Tensor) -> int | tf.Tensor:
    """Bytes of the message that carries these indices, scales and codes."""
    known = slices.indices.shape[0] is not None
    sizes = [part.shape[0] if known else tf.size(part) for part in (slices.indices, scales, codes)]
    return 4 * sizes[0] + 4 * sizes[1] + (sizes[2] + 3) // 4 * 4


def _words(codes: tf.Tensor) -> tf.Tensor:
    """Bytes as int32, padded with zeros."""
    padded = tf.pad(codes, [[0, -tf.size(codes) % 4]])
    words = tf.bitcast(tf.reshape(padded, [-1, 4]), tf.int32)
    return tf.ensure_shape(words, [None if codes.shape[0] is None else (codes.shape[0] + 3) // 4])


def _decoded(rows: tf.Tensor, buckets: tf.Tensor, kept: int | tf.Tensor, quantizer: QSGD) -> tf.Tensor:
    """The values [P * kept] of scales and codes [P, words]; with all buckets made whole, one call decodes them."""
    scales = tf.reshape(tf.bitcast(rows[:, :buckets], tf.float32), [-1])
    codes = tf.reshape(tf.bitcast(rows[:, buckets:], tf.uint8), [tf.shape(rows)[0], -1])
    whole = buckets * quantizer.code_bytes(quantizer.bucket)
    missing = tf.maximum(whole - tf.shape(codes)[1], 0)
    codes = tf.pad(codes[:, :whole], [[0, 0], [0, missing]])
    values = quantizer.decode(tf.reshape(codes, [-1]), scales, tf.size(scales) * quantizer.bucket)
    return tf.reshape(tf.reshape(values, [tf.shape(rows)[0], -1])[:, :kept], [-1])
