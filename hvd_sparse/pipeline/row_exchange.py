"""Looks up rows in a table whose rows are spread over all ranks: row i is on rank i mod P, as that rank's row i // P.

Three messages go from each rank to each: the numbers of the rows it wants, those rows, and their gradients. A row that
a rank wants several times is sent once. The gradients of a row are added up on the rank that wanted it, in the order of
its samples, and then on its owner, in the order of ranks, so that the bits are the same each time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from hvd_sparse.pipeline import rows as of_rows
from hvd_sparse.transport.communicator import Communicator


class RowWire(NamedTuple):
    """How rows are sent.

    Attributes:
        width: d, the number of elements of a row.
        kept: k, the number of elements sent, those of largest magnitude.
        dtype: of elements on the wire.
    """

    width: int
    kept: int
    dtype: str


class Asking(NamedTuple):
    """Which rank wants which rows, after the first message.

    Attributes:
        places: int32 [n], the place of each wanted row among the different ones.
        order: int32 [u], the different ones by the rank that has them.
        wanted: int32 [P], how many of them each rank has.
        asked: int32 [v], the rows that others want of this rank, in the order of ranks, as its own row numbers.
        askers: int32 [P], how many of these each rank wants.
        culprits: int32 [c], ranks that asked for rows that do not exist.
    """

    places: tf.Tensor
    order: tf.Tensor
    wanted: tf.Tensor
    asked: tf.Tensor
    askers: tf.Tensor
    culprits: tf.Tensor


def ask(numbers: tf.Tensor, is_sound: tf.Tensor, world: Communicator, name: str) -> Asking:
    """Tells all ranks which rows this one wants, and whether its request is valid.

    Args:
        numbers: int32 [n], row numbers, which may repeat.
        is_sound: [] bool; sent to all ranks.
        world: all ranks.
        name: the same on every rank, unique among the collectives in flight.

    Steps and bytes sent per rank: P - 1, and 4 for each rank and for each different row that another one has.
    """
    different, places = tf.unique(numbers)
    everyone = tf.range(world.size)
    flags = tf.fill([world.size], tf.cast(~is_sound, tf.int32))
    owners = different % world.size
    order = tf.argsort(tf.concat([everyone, owners], 0), stable=True)  # each rank's flag first
    message = tf.gather(tf.concat([flags, different // world.size], 0), order)
    wanted = tf.math.bincount(owners, minlength=world.size, maxlength=world.size, dtype=tf.int32)
    received, lengths = world.alltoall_ragged(message, wanted + 1, name)
    starts = tf.cumsum(lengths, exclusive=True)
    is_flag = tf.scatter_nd(starts[:, tf.newaxis], tf.ones_like(starts), tf.shape(received)) > 0
    culprits = tf.boolean_mask(tf.constant(world.ranks, tf.int32), tf.gather(received, starts) > 0)
    own = tf.boolean_mask(order - world.size, order >= world.size)
    return Asking(places, own, wanted, tf.boolean_mask(received, ~is_flag), lengths - 1, culprits)


def look_up(shard: Any, asking: Asking, wire: RowWire, world: Communicator, name: str) -> tf.Tensor:
    """The wanted rows, float32 [n, d], in the order of the request; differentiable.

    The gradient of `shard`, a variable float32 [rows, d], is a `tf.IndexedSlices` with different indices.

    Steps and bytes sent per rank: P - 1, and k elements for each row that others want; with k < d also d / 8 bytes for
    their places. For the gradients P - 1, and k elements for each row that this rank wants of others.
    """
    needed, of_each = tf.unique(asking.asked)
    travelled = _carrier(asking, of_each, wire, world, name)
    return travelled(tf.gather(shard, needed))


def _carrier(asking: Asking, of_each: tf.Tensor, wire: RowWire, world: Communicator, name: str) -> Any:
    """Maps the different rows that are wanted of this rank, [w, d], to those that it wants, [n, d]."""
    count = tf.size(asking.order)
    back = tf.scatter_nd(asking.order[:, tf.newaxis], tf.range(count), [count])

    @tf.custom_gradient
    def carried(own: tf.Tensor) -> Any:
        chosen = _Chosen.of(tf.gather(own, of_each), wire)
        message, _ = world.alltoall_ragged(chosen.encoded(), asking.askers, f"{name}.rows")
        arrived = _Chosen.decoded(message, wire)

        def backward(gradient: tf.Tensor) -> tf.Tensor:
            different = _summed(gradient, asking.places, count)
            values = arrived.of_same_places(tf.gather(different, asking.order))
            told, _ = world.alltoall_ragged(tf.cast(values, wire.dtype), asking.wanted, f"{name}.gradients")
            return _summed(chosen.placed(told), of_each, tf.shape(own)[0])

        return tf.gather(tf.gather(arrived.placed(arrived.values), back), asking.places), backward

    return carried


def _summed(values: tf.Tensor, places: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    with tf.device("CPU"):  # a GPU adds them in no fixed order
        return tf.math.unsorted_segment_sum(values, places, count)


class _Chosen(NamedTuple):
    """What is sent of rows.

    Attributes:
        values: [n, k], in the wire's dtype.
        positions: uint16 or int32 [n, k], ascending; None if whole rows are sent.
        width: d.
    """

    values: tf.Tensor
    positions: tf.Tensor | None
    width: int

    @classmethod
    def of(cls, rows: tf.Tensor, wire: RowWire) -> _Chosen:
        """Selects the largest elements of each row."""
        if wire.kept == wire.width:
            return cls(tf.cast(rows, wire.dtype), None, wire.width)
        values, positions = of_rows.largest_rows(rows, wire.kept)
        return cls(tf.cast(values, wire.dtype), positions, wire.width)

    def placed(self, values: tf.Tensor) -> tf.Tensor:
        """Rows float32 [n, d] with values [n, k] at these places, zeros elsewhere."""
        values = tf.cast(values, tf.float32)
        return values if self.positions is None else of_rows.place_rows(values, self.positions, self.width)

    def of_same_places(self, rows: tf.Tensor) -> tf.Tensor:
        """The elements of rows [n, d] at these places, [n, k]."""
        return rows if self.positions is None else of_rows.gather_rows(rows, self.positions)

    def encoded(self) -> tf.Tensor:
        """One message: values alone, or bytes [n, b] of values and a bit for each element of a row."""
        if self.positions is None:
            return self.values
        marks = tf.cast(of_rows.place_rows(tf.ones(tf.shape(self.values)), self.positions, self.width), tf.int32)
        marks = tf.reshape(tf.pad(marks, [[0, 0], [0, -self.width % 8]]), [-1, -(-self.width // 8), 8])
        bits = tf.cast(tf.reduce_sum(marks * _weights(), -1), tf.uint8)
        size = self.values.dtype.size * self.values.shape[1]
        return tf.concat([tf.reshape(tf.bitcast(self.values, tf.uint8), [-1, size]), bits], 1)

    @classmethod
    def decoded(cls, message: tf.Tensor, wire: RowWire) -> _Chosen:
        """Decodes a message."""
        if wire.kept == wire.width:
            return cls(message, None, wire.width)
        size = tf.as_dtype(wire.dtype).size
        values = tf.bitcast(tf.reshape(message[:, : size * wire.kept], [-1, wire.kept, size]), wire.dtype)
        bits = tf.cast(message[:, size * wire.kept :, tf.newaxis], tf.int32)
        marks = tf.reshape(tf.bitwise.bitwise_and(bits, _weights()), [-1, 8 * bits.shape[1]])[:, : wire.width]
        positions = tf.reshape(tf.where(marks > 0)[:, 1], [-1, wire.kept])
        return cls(values, tf.cast(positions, of_rows.position_type(wire.width)), wire.width)


def _weights() -> tf.Tensor:
    return tf.constant([1, 2, 4, 8, 16, 32, 64, 128], tf.int32)
