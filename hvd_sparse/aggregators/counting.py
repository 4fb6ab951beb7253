"""A communicator that counts the bytes it sends, for exchanges whose bytes depend on the data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from hvd_sparse.aggregators.transaction import Traffic, ring_traffic
from hvd_sparse.transport.communicator import Communicator, Grid


class CountingCommunicator(Communicator):
    """Passes calls on to another communicator and counts the payload bytes of all calls so far.

    Make a new one for each exchange: in a graph the bytes are tensors of that graph. Each collective counts what its
    docstring states; rings and trees count as sent to the next rank.

    Attributes:
        traffic: what this rank has sent so far.
    """

    def __init__(self, communicator: Communicator, grid: Grid):
        super().__init__(communicator.name, communicator.ranks, communicator.rank)
        self.traffic = Traffic()
        self._communicator = communicator
        self._grid = grid

    def _allreduce(self, tensor, op, name):
        self._pass_on(2 * (self.size - 1) * _bytes(tensor) // self.size)
        return self._communicator.allreduce(tensor, op, name)

    def _allgather(self, tensor, name, lengths):
        self._pass_on((self.size - 1) * _bytes(tensor))
        return self._communicator.allgather(tensor, name, lengths)

    def _alltoall(self, tensor, splits, name):
        self._hand_out(tensor, tf.constant(splits))
        return self._communicator.alltoall(tensor, splits, name)

    def _alltoall_ragged(self, tensor, splits, name):
        self._hand_out(tensor, splits)
        return self._communicator.alltoall_ragged(tensor, splits, name)

    def _broadcast(self, tensor, root, name):
        self._pass_on(_bytes(tensor))
        return self._communicator.broadcast(tensor, root, name)

    def _pass_on(self, sent: int | tf.Tensor) -> None:
        self.traffic = self.traffic.plus(ring_traffic(self._communicator, self._grid, sent))

    def _hand_out(self, tensor: tf.Tensor, rows: tf.Tensor) -> None:
        inside = self._rows_for(rows, [rank in self._grid.node.ranks for rank in self.ranks])
        across = self._rows_for(rows, [rank not in self._grid.node.ranks for rank in self.ranks])
        row = math.prod(tensor.shape[1:]) * tensor.dtype.size
        self.traffic = self.traffic.plus(Traffic(inside * row, across * row))

    def _rows_for(self, rows: tf.Tensor, chosen: Sequence[bool]) -> tf.Tensor:
        others = [chosen[rank] and rank != self.rank for rank in range(self.size)]
        return tf.reduce_sum(tf.cast(rows, tf.int64) * tf.constant(others, tf.int64))


def _bytes(tensor: tf.Tensor) -> int | tf.Tensor:
    """The bytes of a tensor; a number if its shape is known."""
    elements = tensor.shape.num_elements()
    return (tf.size(tensor, tf.int64) if elements is None else elements) * tensor.dtype.size
