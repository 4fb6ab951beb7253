"""The role: takes the vectors of all ranks, returns their mean as far as messages arrive (RPS, Yu et al. 2019).

All members obey this law. Rank i sends block b of its vector, v_i^b, to the owner of that block (reduce-scatter). With
S_b the ranks whose block has reached the owner, always including the owner itself, the mean is

    (the sum of v_j^b over j in S_b, float32, in ascending order of ranks, beginning with the first of S_b) / |S_b|

with one float32 division. The owner keeps it and sends it to all ranks (all-gather); a rank that does not receive it
keeps its own v_i^b (section 4.1, equation 3). If nothing is lost, all ranks have the same bits, whatever the transport.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_sparse.spec import describe
from hvd_sparse.transport.communicator import Communicator


class Averaged(NamedTuple):
    """The result of a round on this rank.

    A piece arrives or is lost as a whole: a block for `Lossy`, a segment of a block for datagrams.

    Attributes:
        vector: [d] float32.
        expected: [2, P] int64, the number of pieces expected from each rank, row 0 in the reduce-scatter and row 1 in
            the all-gather; 0 from the rank itself.
        arrived: [2, P] int64, how many of them arrived.
        round: [] int64, the round that was averaged: a rank that was away may have jumped to the others' round.
    """

    vector: tf.Tensor
    expected: tf.Tensor
    arrived: tf.Tensor
    round: tf.Tensor


class Channel(abc.ABC):
    """A transport that is open for vectors of one size."""

    @abc.abstractmethod
    def average(self, vector: tf.Tensor, round: tf.Tensor) -> Averaged:
        """Averages a vector over all ranks by the module's law; eagerly or in a `tf.function`.

        Args:
            vector: [d] float32, finite on every rank.
            round: [] int64, at least 0.
        """

    def culprit(self, own: tf.Tensor) -> tf.Tensor:
        """The rank whose vector is not finite and must not be averaged, as far as this rank can tell.

        A transport over collectives asks all ranks, so that all of them end with the same error. A transport whose
        rounds wait for no rank does not ask: the rank ends on its own and sends nothing more, and to the others it is a
        rank whose messages are lost, until all meet again.

        Args:
            own: [] int32, 0, or 1 + this rank if its own vector is not finite.

        Returns:
            [] int32, 0, or 1 + the rank of a vector that is not finite.
        """
        return own

    def report(self) -> dict[str, Any]:
        """What the channel has seen beyond `Averaged`, for telemetry; {} if nothing."""
        return {}

    def close(self) -> None:
        """Releases what the channel holds; it averages nothing afterwards."""
        return None


class Transport(abc.ABC):
    """How ranks exchange vectors for averaging: a frozen dataclass from which each optimizer opens a channel."""

    def account(self) -> Any:
        """What must be the same on all ranks, JSON-serialisable."""
        return describe(self)

    @abc.abstractmethod
    def open(self, size: int, world: Communicator, rotate: bool, name: str) -> Channel:
        """Opens a channel; every rank calls it, as it may be a collective.

        Args:
            size: d, the number of elements of each vector, at least 1.
            world: all ranks.
            rotate: whether the owners of blocks change from round to round, see `Blocks.owner_of`.
            name: the same on every rank, unique among the channels that are open.
        """
