"""SSAR_Split_allgather: every rank combines one piece of the vector, and all ranks gather all pieces."""

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
        slices: this rank's contribution, see `hvd_sparse.collectives`.
        communicator: the ranks that take part.
        op: "sum", "max", "min" or "product".
        name: the same on every rank, unique among the collectives in flight.
        dense_above: rows above which a message of the whole vector is dense; for a piece, its share of them.

    Returns:
        tf.IndexedSlices, or in eager code a tensor if the result has more rows than `dense_above`. Rows are combined in
        rank order. If a piece has travelled dense, all its rows are present, neutral ones included.

    Raises:
        ValueError: on every rank, if any rank's slices are invalid or the ranks' calls differ.

    Steps and bytes sent per rank: P - 1 to split and P - 1 to gather (as a ring), and from 2 (P - 1) / P to P times k
    rows of 4 bytes and their values, depending on how much the index sets overlap. This is the mean over the ranks: the
    pieces may have more or fewer rows, and so their owners send more or less.
    """
    prepared = prepare("split_allgather", slices, communicator, op, name, dense_above)
    return prepared.result(combine_pieces(prepared.layout, prepared.message, communicator, name))


def combine_pieces(layout: Layout, message: tf.Tensor, communicator: Communicator, name: str) -> tf.Tensor:
    """The same for messages."""
    if communicator.size == 1:
        return message
    own = own_piece(layout, message, communicator, name)
    return layout.concat(communicator.allgather(own, f"{name}.gather"), communicator.size)


def own_piece(layout: Layout, message: tf.Tensor, communicator: Communicator, name: str) -> tf.Tensor:
    """The message of this rank's piece, combined in rank order: the first half of the algorithm.

    Steps and bytes sent per rank: P - 1, and the message without this rank's own piece.
    """
    if communicator.size == 1:
        return message
    pieces, lengths = layout.split(message, communicator.size)
    received, _ = communicator.alltoall_ragged(pieces, lengths, f"{name}.split")
    return layout.piece(communicator.rank, communicator.size).reduce(received)
