"""Rings, for comparison: each rank sends to the next one only, sparse pieces or dense ones."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from hvd_sparse.collectives.prepared import Result, prepare
from hvd_sparse.transport.communicator import Communicator

_DENSE = {"sum": tf.add, "max": tf.maximum, "min": tf.minimum, "product": tf.multiply}


def sparse_ring(
    slices: tf.IndexedSlices,
    communicator: Communicator,
    op: str = "sum",
    name: str = "sparse_ring",
    dense_above: int | None = None,
) -> Result:
    """Combines the slices of all ranks by a ring all-reduce of sparse pieces.

    Args:
        slices: this rank's contribution, see `hvd_sparse.collectives`.
        communicator: the ranks that take part.
        op: "sum", "max", "min" or "product".
        name: the same on every rank, unique among the collectives in flight.
        dense_above: rows above which a message of the whole vector is dense; for a piece, its share of them.

    Returns:
        tf.IndexedSlices, or in eager code a tensor if the result has more rows than `dense_above`. Piece p is combined
        in the order of the ring, from rank p + 1 on. If a piece has travelled dense, all its rows are present, neutral
        ones included.

    Raises:
        ValueError: on every rank, if any rank's slices are invalid or the ranks' calls differ.

    Steps and bytes sent per rank: 2 (P - 1), and from 2 (P - 1) / P to (P - 1) / 2 + P - 1 times k rows of 4 bytes
    and their values, depending on how much the index sets overlap.
    """
    prepared = prepare("sparse_ring", slices, communicator, op, name, dense_above)
    layout, ranks = prepared.layout, communicator.size
    if ranks == 1:
        return prepared.result(prepared.message)
    messages, lengths = layout.split(prepared.message, ranks)

    def join(part: int, received: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
        return layout.piece(part, ranks).reduce(tf.concat([received, own], 0))

    pieces = _ring(tf.split(messages, lengths, num=ranks), join, communicator, name)
    return prepared.result(layout.concat(tf.concat(pieces, 0), ranks))


def dense_ring(
    slices: tf.IndexedSlices,
    communicator: Communicator,
    op: str = "sum",
    name: str = "dense_ring",
    dense_above: int | None = None,
) -> tf.Tensor:
    """Combines the slices of all ranks by a ring all-reduce of the whole vector.

    Args:
        slices: this rank's contribution, see `hvd_sparse.collectives`.
        communicator: the ranks that take part.
        op: "sum", "max", "min" or "product".
        name: the same on every rank, unique among the collectives in flight.
        dense_above: has no effect, as everything is dense.

    Returns:
        A tensor of the dense shape. Piece p is combined in the order of the ring, from rank p + 1 on.

    Raises:
        ValueError: on every rank, if any rank's slices are invalid or the ranks' calls differ.

    Steps and bytes sent per rank: 2 (P - 1), and 2 (P - 1) / P times all values.
    """
    prepared = prepare("dense_ring", slices, communicator, op, name, dense_above)
    vector, ranks = prepared.layout.dense(prepared.message), communicator.size
    if ranks == 1:
        return prepared.vector(vector)
    pieces = tf.split(vector, [prepared.layout.rows_of(part, ranks) for part in range(ranks)])
    join = _DENSE[op]
    whole = _ring(pieces, lambda part, received, own: join(received, own), communicator, name)
    return prepared.vector(tf.concat(whole, 0))


def _ring(
    pieces: list[tf.Tensor],
    join: Callable[[int, tf.Tensor, tf.Tensor], tf.Tensor],
    communicator: Communicator,
    name: str,
) -> list[tf.Tensor]:
    """Sends piece `rank` of every rank round the ring, joining each rank's; then sends all pieces round once more."""
    ranks, rank = communicator.size, communicator.rank
    following, preceding = (rank + 1) % ranks, (rank - 1) % ranks
    pieces = list(pieces)
    for step in range(ranks - 1):
        sent, part = (rank - step - 1) % ranks, (rank - step - 2) % ranks
        received = communicator.exchange(pieces[sent], following, preceding, f"{name}.reduce.{step}")
        pieces[part] = join(part, received, pieces[part])
    for step in range(ranks - 1):
        sent, part = (rank - step) % ranks, (rank - step - 1) % ranks
        pieces[part] = communicator.exchange(pieces[sent], following, preceding, f"{name}.gather.{step}")
    return pieces
