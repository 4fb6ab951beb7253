"""NaiveAG of ranks that send as many elements as each finds worth it."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.collectives.allgather_sum import message_bytes
from hvd_sparse.transport.communicator import Communicator

_HEADER_BYTES = 8


def allgather_counted(
    slices: tf.IndexedSlices, nonfinite: tf.Tensor, communicator: Communicator, name: str = "allgather_counted"
) -> tuple[tf.IndexedSlices, tf.Tensor]:
    """Gives every rank the contributions of all, where no rank knows how many elements another one sends.

    Count and whether something is not finite stand before values and indices, in the same message: so a rank that has
    nothing to send can tell it, too.

    Args:
        slices: values [k] float32, float16 or bfloat16 and unique indices [k] int32; k differs between ranks, and may
            be 0.
        nonfinite: [] bool, whether what this rank sends is of no use.
        communicator: the ranks that take part.
        name: the same on every rank, unique among the collectives in flight.

    Returns:
        Values [sum of k] and indices, rank after rank, as of `allgather_sum`; and whether any rank's are of no use, []
        bool, the same on every rank.

    Raises:
        tf.errors.InvalidArgumentError: where what has come is no message of this dtype from each of the ranks.

    Steps and bytes sent per rank: P - 1 and (P - 1) (8 + k (4 + bytes of a value, rounded up to 4 in all)).
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
    """Bytes of the message that carries these slices."""
    return _HEADER_BYTES + message_bytes(slices)
