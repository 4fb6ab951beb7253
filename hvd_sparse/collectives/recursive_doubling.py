"""SSAR_Recursive_double: whole vectors are exchanged between pairs whose distance doubles."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.collectives.prepared import HEAD, Layout, Result, prepare
from hvd_sparse.transport.communicator import Communicator


def recursive_doubling(
    slices: tf.IndexedSlices,
    communicator: Communicator,
    op: str = "sum",
    name: str = "recursive_doubling",
    dense_above: int | None = None,
) -> Result:
    """Combines the slices of all ranks in log2 P rounds, for little data (SparCML 5.3.1, SSAR_Recursive_double).

    Args:
        slices: this rank's contribution, see `hvd_sparse.collectives`.
        communicator: the ranks that take part.
        op: "sum", "max", "min" or "product".
        name: the same on every rank, unique among the collectives in flight.
        dense_above: rows above which a message is dense.

    Returns:
        tf.IndexedSlices, or in eager code a tensor if the result has more rows than `dense_above`. Rows are combined in
        rank order, pairs first.

    Raises:
        ValueError: on every rank, if any rank's slices are invalid or the ranks' calls differ.

    Steps and bytes sent per rank: log2 P, and from log2 P to P - 1 times k rows of 4 bytes and their values, depending
    on how much the index sets overlap. If P is not a power of two, two more steps (appendix A): each surplus rank first
    sends its rows to the rank before it, which sends it the result at the end. Between two ranks, the only exchange is
    an all-gather, which in eager code travels in the same message as the check of the call.
    """
    along = 2**31 if communicator.size == 2 else -1
    prepared = prepare("recursive_doubling", slices, communicator, op, name, dense_above, along=along)
    if prepared.gathered is not None:
        return prepared.result(prepared.layout.reduce(prepared.gathered, HEAD))
    return prepared.result(combine_pairs(prepared.layout, prepared.message, communicator, name))


def combine_pairs(layout: Layout, message: tf.Tensor, communicator: Communicator, name: str) -> tf.Tensor:
    """The same for messages."""
    place = _Place.of(communicator.rank, communicator.size)
    if place.surplus:  # the first 2 * surplus ranks form pairs; the even one takes part for both
        handed = communicator.exchange(message, place.hands_to, place.handed_by, f"{name}.before")
        if place.handed_by is not None:
            message = layout.reduce(tf.concat([message, handed], 0))
    for number, partner in enumerate(place.partners):
        received = communicator.exchange(message, partner, partner, f"{name}.{number}")
        if partner is not None:
            first_lower = [message, received] if communicator.rank < partner else [received, message]
            message = layout.reduce(tf.concat(first_lower, 0))
    if place.surplus:
        result = communicator.exchange(message, place.handed_by, place.hands_to, f"{name}.after")
        message = message if place.hands_to is None else result
    return message


class _Place:
    """A rank's partners in each round among P ranks; None if it only looks on.

    Attributes:
        surplus: the number of ranks above the largest power of two.
        hands_to: the rank that takes part for this rank and sends it the result, or None.
        handed_by: the rank for which this rank takes part, or None.
        partners: the partner in each round.
    """

    def __init__(self, surplus: int, hands_to: int | None, handed_by: int | None, partners: list[int | None]):
        self.surplus = surplus
        self.hands_to = hands_to
        self.handed_by = handed_by
        self.partners = partners

    @classmethod
    def of(cls, rank: int, ranks: int) -> _Place:
        rounds = ranks.bit_length() - 1
        surplus = ranks - 2**rounds
        paired = rank < 2 * surplus
        if paired and rank % 2:
            return cls(surplus, rank - 1, None, [None] * rounds)
        number = rank // 2 if paired else rank - surplus
        others = (number ^ 2**distance for distance in range(rounds))
        partners = [2 * other if other < surplus else other + surplus for other in others]
        return cls(surplus, None, rank + 1 if paired else None, [*partners])
