"""The sparse all-gather: every rank gets all contributions and combines them itself."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.collectives.prepared import HEAD, Layout, Result, prepare
from hvd_sparse.transport.communicator import Communicator


def allgather(
    slices: tf.IndexedSlices,
    communicator: Communicator,
    op: str = "sum",
    name: str = "allgather",
    dense_above: int | None = None,
) -> Result:
    """Gathers the slices of all ranks on every rank, which combines them; for disjoint index sets (SparCML 5.3).

    Args:
        slices: this rank's contribution, see `hvd_sparse.collectives`.
        communicator: the ranks that take part.
        op: "sum", "max", "min" or "product".
        name: the same on every rank, unique among the collectives in flight.
        dense_above: rows above which a message is dense.

    Returns:
        tf.IndexedSlices, or in eager code a tensor if the result has more rows than `dense_above`. Rows are combined in
        rank order.

    Raises:
        ValueError: on every rank, if any rank's slices are invalid or the ranks' calls differ.

    Steps and bytes sent per rank: P - 1 (as a ring), and P - 1 times k rows of 4 bytes and their values. In eager code
    they travel in the same message as the check of the call.
    """
    prepared = prepare("allgather", slices, communicator, op, name, dense_above, along=2**31)
    if communicator.size == 1:
        return prepared.result(prepared.message)
    if prepared.gathered is not None:
        return prepared.result(prepared.layout.reduce(prepared.gathered, HEAD))
    return prepared.result(combine_gathered(prepared.layout, prepared.message, communicator, name))


def combine_gathered(layout: Layout, message: tf.Tensor, communicator: Communicator, name: str) -> tf.Tensor:
    """The same for messages."""
    return layout.reduce(communicator.allgather(message, f"{name}.gather"))
