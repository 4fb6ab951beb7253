"""SSAR_Split_allgather: every rank combines one piece of the vector, and all get all pieces."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.collectives.prepared import Layout, Result, prepare
from hvd_sparse.transport.communicator import Communicator


def split_allgather(
    slices: tf.IndexedSlices,
    communicator: Communicator,
    op: str = "sum",
    name: str = "split_allgather",
    dense_above: int | None = None,
) -> Result:
    """Combines the slices of all ranks piece by piece, for much data (SparCML 5.3.2, SSAR_Split_allgather).

    Args:
        slices: what this rank brings, see `hvd_sparse.collectives`.
        communicator: the ranks that take part.
        op: "sum", "max", "min" or "product".
        name: the same on every rank, unique among the collectives in flight.
        dense_above: rows above which a message of the whole vector is dense; one of a piece has its share of them.

    Returns:
        tf.IndexedSlices; in eager code a tensor where the result has more rows than `dense_above`. Rows are combined in
        rank order. Where a piece
        has travelled dense all its rows are there, neutral ones too.

    Raises:
        ValueError: on every rank alike where a rank's slices cannot be used or the ranks were called differently.

    Steps and bytes sent per rank: P - 1 to split and P - 1 to gather (as a ring), and from 2 (P - 1) / P to P times k
    rows of 4 bytes and their values, by how much the index sets overlap; the mean over the ranks, as the rows of a
    piece and so what its owner sends may be more or fewer.
    """
    prepared = prepare("split_allgather", slices, communicator, op, name, dense_above)
    return prepared.result(combine_pieces(prepared.layout, prepared.message, communicator, name))


def combine_pieces(layout: Layout, message: tf.Tensor, communicator: Communicator, name: str) -> tf.Tensor:
    """The same on messages."""
    if communicator.size == 1:
        return message
    own = own_piece(layout, message, communicator, name)
    return layout.concat(communicator.allgather(own, f"{name}.gather"), communicator.size)


def own_piece(layout: Layout, message: tf.Tensor, communicator: Communicator, name: str) -> tf.Tensor:
    """The message of this rank's piece, combined in rank order: the first half of the algorithm.

    Steps and bytes sent per rank: P - 1, and the message but for the own piece.
    """
    if communicator.size == 1:
        return message
    pieces, lengths = layout.split(message, communicator.size)
    received, _ = communicator.alltoall_ragged(pieces, lengths, f"{name}.split")
    return layout.piece(communicator.rank, communicator.size).reduce(received)
