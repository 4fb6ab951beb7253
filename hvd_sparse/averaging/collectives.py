"""What the transports over reliable collectives share: every block is sent, and a function says which ones count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.averaging.blocks import Blocks
from hvd_sparse.averaging.transports import Averaged, Channel
from hvd_sparse.transport.communicator import Communicator

# Adding this changes no bit of a sum, not even the sign of a zero. It is an array because TensorFlow caches scalars by
# value: 0.0 and -0.0 compare equal, and it would return whichever of the two it has seen first.
_NOTHING = np.array([-0.0], np.float32)

Arrivals = Callable[[tf.Tensor], tf.Tensor]  # round [] int64 -> ranks whose blocks arrive here, [2, P] bool


class CollectiveChannel(Channel):
    """Averages with an all-to-all and an all-gather of `Communicator`, and uses the blocks that count as arrived.

    Steps and bytes sent per rank: 2 (P - 1) and 8 (P - 1) / P of the padded elements; one all-reduce of 4 bytes to
    agree on which ranks are finite.
    """

    def __init__(self, blocks: Blocks, world: Communicator, rotate: bool, name: str, arrivals: Arrivals):
        self._blocks = blocks
        self._world = world
        self._rotate = rotate
        self._name = name
        self._arrivals = arrivals
        ranks = [int(rank != world.rank) for rank in range(world.size)]
        self._expected = tf.constant([ranks, ranks], tf.int64)

    @tf.autograph.experimental.do_not_convert
    def average(self, vector, round):
        arrived = self._arrivals(round)
        blocks = self._blocks.cut(vector)
        means = self._gathered(self._mean_of_own_block(blocks, arrived[0], round), round)
        received = self._blocks.by_block(arrived[1], round, self._rotate)
        new = tf.where(received[:, None], means, blocks)
        counted = tf.cast(arrived, tf.int64) * self._expected
        return Averaged(self._blocks.join(new), tf.identity(self._expected), counted, tf.identity(round))

    def culprit(self, own):
        return self._world.allreduce(own, "max", f"{self._name}.culprit")

    def _mean_of_own_block(self, blocks: tf.Tensor, arrived: tf.Tensor, round: tf.Tensor) -> tf.Tensor:
        """The mean [1, length] of those blocks that have arrived, [P] bool, for the block that this rank owns."""
        sent = self._blocks.by_owner(blocks, round, self._rotate)
        parts = self._world.alltoall(sent, [1] * self._blocks.ranks, f"{self._name}.reduce_scatter")
        total, _ = ops.sum_parts(tf.where(arrived[:, None], parts, tf.constant(_NOTHING)))
        mean, _ = ops.mean(total, tf.math.count_nonzero(arrived), tf.float32)
        return mean[None]

    def _gathered(self, mean: tf.Tensor, round: tf.Tensor) -> tf.Tensor:
        """The means of all blocks, [P, length]."""
        owned = self._world.allgather(mean, f"{self._name}.all_gather", [1] * self._blocks.ranks)
        return self._blocks.by_block(owned, round, self._rotate)
