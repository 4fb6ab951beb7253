"""NaiveAG for ranks that send different numbers of elements."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.collectives.allgather_sum import message_bytes
from hvd_sparse.transport.communicator import Communicator

_HEADER_BYTES = 8


def allgather_counted(
    slices: tf.IndexedSlices, nonfinite: tf.Tensor, communicator: Communicator, name: str = "allgather_counted"
) -> tuple[tf.IndexedSlices, tf.Tensor]:
    """Gathers the contributions of all ranks, which need not know how many elements the others send.

    The message begins with the count and with whether something is not finite, so that a rank with nothing else to
    send can report a fault, too.

    Args:
        slices: values [k] float32, float16 or bfloat16 and unique indices [k] int32; k may differ between ranks and be
            0.
        nonfinite: [] bool, whether what this rank sends is invalid.
        communicator: the ranks that take part.
        name: the same on every rank, unique among the collectives in flight.

    Returns:
        Values [sum of k] and indices, rank after rank, as from `allgather_sum`; and whether any rank's are invalid, []
        bool, the same on every rank.

    Raises:
        tf.errors.InvalidArgumentError: if the received data are not one message of this dtype from each rank.

    Steps and bytes sent per rank: P - 1 and (P - 1) (8 + k (4 + bytes per value)), each message rounded up to 4.
    """
    if communicator.size == 1:
        return slices, nonfinite
    header = tf.stack([tf.size(slices.indices), tf.cast(nonfinite, tf.int32)])
    message = tf.concat([header, ops.pack(slices.values, slices.indices)], 0)
    gathered = communicator.allgather(message, name)
    values, indices, told = ops.library().hvd_sparse_unpack_counted(
        messages=gathered, T=slices.values.dtype, ranks=communicator.size
    )
    return tf.IndexedSlices(values, indices, slices.dense_shape), told


def counted_bytes(slices: tf.IndexedSlices) -> int | tf.Tensor:
    """Bytes of the message with these slices."""
    return _HEADER_BYTES + message_bytes(slices)
