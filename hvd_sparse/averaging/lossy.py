"""Averaging that drops messages at random, over a network that loses none."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse.averaging.blocks import Blocks
from hvd_sparse.averaging.collectives import CollectiveChannel
from hvd_sparse.averaging.transports import Transport


@dataclasses.dataclass(frozen=True)
class Lossy(Transport):
    """Loses each block between each pair of ranks, in each of the two phases, independently with the same probability.

    This is the simulation of section 6.1 of Yu et al. 2019: it shows how much loss training tolerates before it runs on
    such a network. All blocks travel over Horovod's reliable collectives; those that are drawn as lost are not used.
    What is lost depends on the seed and the round alone.

    Attributes:
        probability: of losing a block, in [0, 1]; an owner's own block is never lost.
        seed: of the draws, the same on every rank, in [0, 2^63).

    Steps and bytes sent per rank: those of `CollectiveChannel`.
    """

    probability: float
    seed: int = 0

    def __post_init__(self):
        if not 0.0 <= self.probability <= 1.0:
            raise ValueError(f"Expected a probability of loss in [0, 1], got {self.probability}.")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"Expected a seed in [0, 2^63), got {self.seed}.")

    def open(self, size, world, rotate, name):
        def arrivals(round: tf.Tensor) -> tf.Tensor:
            return ~lost(self.probability, self.seed, round, world.size)[:, :, world.rank]

        return CollectiveChannel(Blocks(size, world.size), world, rotate, name, arrivals)


def lost(probability: float, seed: int, round: tf.Tensor | int, ranks: int) -> tf.Tensor:
    """The messages of a round that `Lossy` loses: the same on every rank and in every run.

    Args:
        probability: of losing each message between two ranks.
        seed: of the draws.
        round: [] int64.
        ranks: P.

    Returns:
        [2, P, P] bool: phase (reduce-scatter, all-gather), sender, receiver; False if sender and receiver are the same.
    """
    with tf.device("CPU:0"):
        seeds = tf.stack([tf.constant(seed, tf.int64), tf.cast(round, tf.int64)])
        drawn = tf.random.stateless_uniform([2, ranks, ranks], seeds, alg="philox")
        return (drawn < probability) & ~tf.eye(ranks, dtype=tf.bool)
