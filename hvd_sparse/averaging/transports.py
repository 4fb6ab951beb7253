"""The role: vectors of all ranks go in, and their mean comes out, as far as messages arrive (RPS, Yu et al. 2019).

The law of all members. Rank i sends block b of its vector, v_i^b, to the owner of that block (reduce-scatter). With S_b
the ranks whose piece has reached the owner, its own always among them, the mean is

    (the sum of v_j^b over j in S_b, float32, in ascending order of ranks, beginning with the first of S_b) / |S_b|

with one float32 division. The owner sends it to all ranks and has it itself (all-gather); who does not receive it keeps
its own v_i^b (section 4.1, equation 3). Where nothing is lost all ranks have the same bits, and so do all transports.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_sparse.spec import describe
from hvd_sparse.transport.communicator import Communicator


class Averaged(NamedTuple):
    """What a round has made of this rank's vector.

    A piece is what arrives or is lost as a whole: a block for `Lossy`, a segment of one for datagrams.

    Attributes:
        vector: [d] float32.
        expected: [2, P] int64, the pieces that were to come from each rank, row 0 in the reduce-scatter and row 1 in
            the all-gather; 0 from the rank itself.
        arrived: [2, P] int64, those of them that came.
        round: [] int64, the one that was averaged: a rank that was away may have jumped to where the others are.
    """

    vector: tf.Tensor
    expected: tf.Tensor
    arrived: tf.Tensor
    round: tf.Tensor


class Channel(abc.ABC):
    """A transport that is open for vectors of one size."""

    @abc.abstractmethod
    def average(self, vector: tf.Tensor, round: tf.Tensor) -> Averaged:
        """Averages a vector over all ranks by the law of the module; eagerly or in a `tf.function`.

        Args:
            vector: [d] float32, finite on every rank.
            round: [] int64, at least 0.
        """

    def culprit(self, own: tf.Tensor) -> tf.Tensor:
        """Who has a vector that is not finite and must not be averaged, as far as this rank can tell.

        A transport over collectives asks all ranks, so that all of them end with the same error. One whose rounds wait
        for nobody asks nobody: the rank ends by itself and sends nothing more, and others take it for one whose
        messages are lost, until all meet again.

        Args:
            own: [] int32, 0, or 1 + this rank where its own vector is not finite.

        Returns:
            [] int32, 0, or 1 + the rank of a vector that is not finite.
        """
        return own

    def report(self) -> dict[str, Any]:
        """What the channel has seen beside what `Averaged` tells, for telemetry; {} where there is nothing."""
        return {}

    def close(self) -> None:
        """Gives back what the channel holds; it averages nothing afterwards."""
        return None


class Transport(abc.ABC):
    """How ranks send each other what is averaged: a frozen dataclass, of which each optimizer opens a channel."""

    def account(self) -> Any:
        """What all ranks must have in common, JSON-serialisable."""
        return describe(self)

    @abc.abstractmethod
    def open(self, size: int, world: Communicator, rotate: bool, name: str) -> Channel:
        """Makes a channel; every rank calls it, as it may be a collective.

        Args:
            size: d, the elements of each vector, at least 1.
            world: all ranks.
            rotate: whether the owners of blocks change from round to round, see `Blocks.owner_of`.
            name: the same on every rank, unique among the channels that are open.
        """
