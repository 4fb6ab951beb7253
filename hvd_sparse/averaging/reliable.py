"""Averaging without loss."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse.averaging.blocks import Blocks
from hvd_sparse.averaging.collectives import CollectiveChannel
from hvd_sparse.averaging.transports import Transport


@dataclasses.dataclass(frozen=True)
class Reliable(Transport):
    """The exact mean, the same bits on every rank, over Horovod's reliable collectives.

    Steps and bytes sent per rank: those of `CollectiveChannel`.
    """

    def open(self, size, world, rotate, name):
        def all_arrive(round: tf.Tensor) -> tf.Tensor:
            return tf.ones([2, world.size], tf.bool)

        return CollectiveChannel(Blocks(size, world.size), world, rotate, name, all_arrive)
