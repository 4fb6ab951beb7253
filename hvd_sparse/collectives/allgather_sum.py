"""NaiveAG: every rank gets the contributions of all ranks as they are."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.transport.communicator import Communicator


def allgather_sum(
    slices: tf.IndexedSlices,
    communicator: Communicator,
    name: str = "allgather_sum",
    counts: Sequence[int] | None = None,
) -> tf.IndexedSlices:
    """Gathers the contributions of all ranks, values and indices in one message (CommLib Algorithm 2, lines 11-14).

    Args:
        slices: values [k] float32, float16 or bfloat16 and unique indices [k] int32.
        communicator: the ranks that take part.
        name: the same on every rank, unique among the collectives in flight.
        counts: k of each rank, if they differ; by default all ranks have this rank's k.

    Returns:
        Values [sum of k] and indices, rank after rank. An index may occur once per rank; as everywhere in TensorFlow,
        its values are to be added, here in their order.

    Steps and bytes sent per rank: P - 1 and (P - 1) k (4 + bytes per value), each message rounded up to 4.
    """
    if communicator.size == 1:
        return slices
    message = ops.pack(slices.values, slices.indices)
    sizes = list(counts) if counts is not None else [count(slices)] * communicator.size
    known = all(isinstance(size, int) for size in sizes)
    lengths = [_message_bytes(size, slices.values.dtype) // 4 for size in sizes] if known else None
    gathered = communicator.allgather(message, name, lengths)
    values, indices = ops.unpack(gathered, tf.stack(sizes), slices.values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def message_bytes(slices: tf.IndexedSlices) -> int | tf.Tensor:
    """Bytes of the message with these slices: 4 per index, and the values padded to a multiple of 4."""
    return _message_bytes(count(slices), slices.values.dtype)


def count(slices: tf.IndexedSlices) -> int | tf.Tensor:
    """The number of entries in the slices; a Python number if it is known when the graph is built."""
    static = slices.indices.shape[0]
    return tf.size(slices.indices) if static is None else static


def _message_bytes(entries, dtype: tf.DType):
    return 4 * entries + (entries * dtype.size + 3) // 4 * 4
