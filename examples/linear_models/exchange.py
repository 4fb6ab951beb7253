"""Combines the ranks' sparse vectors: a sum for gradients, a gathering for coordinates of disjoint slices.

Nothing is left out or rounded beyond float32. The time that a rank spends in the exchange is measured; copies from and
to NumPy are not part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.transport.communicator import Communicator

T = TypeVar("T")

DENSE = "dense"  # Horovod's own all-reduce, and its all-gather of whole slices
GATHERED = "allgather"  # every rank's entries to every rank
AUTO = "auto"
SUMS = ("recursive_doubling", "split_allgather", "dynamic", AUTO, GATHERED, DENSE)
GATHERINGS = (GATHERED, DENSE)


class Entries(NamedTuple):
    """Entries of a vector.

    Attributes:
        indices: int32 [k], ascending and unique; None if all elements are given.
        values: float32 [k], or [size].
    """

    indices: np.ndarray | None
    values: np.ndarray


class Exchange:
    """One way to combine the vectors [size] of all ranks; every rank must call the same methods in the same order.

    Making one is a collective, too: `auto` measures how long calls take.

    Args:
        kind: one of SUMS.
        communicator: the ranks.
        size: number of elements of the vectors.
        meet: whether ranks wait for each other before each exchange, by an all-reduce of 4 bytes.

    Attributes:
        seconds: spent in exchanges so far, waiting for the slowest rank included unless ranks meet before.
        waiting: seconds that ranks took to meet.
        count: exchanges so far.
        sent: entries that this rank had for them; a dense exchange sends all others as zeros.
        received: entries of the results, in total.
    """

    def __init__(self, kind: str, communicator: Communicator, size: int, meet: bool = False):
        self.kind = kind
        self._communicator, self._size, self._meet = communicator, size, meet
        self.seconds, self.waiting = 0.0, 0.0
        self.count, self.sent, self.received = 0, 0, 0
        if kind == AUTO and communicator.size > 1:
            hvd.collectives.auto.transport(communicator)  # measures now, outside the timed exchanges

    def sum(self, own: Entries) -> Entries:
        """The sum over the ranks, with the same bits on all of them."""
        if self.kind == DENSE:
            vector = np.zeros(self._size, np.float32)
            vector[own.indices] = own.values
            given = tf.constant(vector)
            summed = self._timed(lambda: self._communicator.allreduce(given, "sum", "linear.sum"))
            return self._counted(own, Entries(None, summed.numpy()))
        slices, collective = self._slices(own), getattr(hvd.collectives, self.kind)
        summed = self._timed(lambda: collective(slices, self._communicator, name="linear.sum"))
        return self._counted(own, _entries(summed))

    def gather(self, own: Entries, vector: np.ndarray, bounds: list[int], counts: list[int]) -> Entries:
        """Every rank's new elements, each from its own slice of a vector that all ranks hold.

        Args:
            own: this rank's new elements.
            vector: float32 [size], the values that all ranks had before.
            bounds: slice r is from bounds[r] to bounds[r + 1].
            counts: number of new elements of each rank.

        Returns:
            The new elements of all ranks; after a dense exchange, those that differ from the previous values.
        """
        if self.kind == GATHERED:
            slices = self._slices(own)
            gathered = self._timed(
                lambda: hvd.collectives.allgather_sum(slices, self._communicator, "linear.gather", counts)
            )
            return self._counted(own, _entries(gathered))
        begin, end = bounds[self._communicator.rank], bounds[self._communicator.rank + 1]
        piece = vector[begin:end].copy()
        piece[own.indices - begin] = own.values
        given, lengths = tf.constant(piece), np.diff(bounds).tolist()
        whole = self._timed(lambda: self._communicator.allgather(given, "linear.gather", lengths)).numpy()
        changed = np.flatnonzero(whole != vector)
        return self._counted(own, Entries(changed.astype(np.int32), whole[changed]))

    def _slices(self, own: Entries) -> tf.IndexedSlices:
        return tf.IndexedSlices(tf.constant(own.values), tf.constant(own.indices), tf.constant([self._size], tf.int64))

    def _timed(self, exchanged: Callable[[], T]) -> T:
        begun = time.perf_counter()
        if self._meet:
            self._communicator.allreduce(tf.zeros([1]), "sum", "linear.meet")
        met = time.perf_counter()
        result = exchanged()
        self.waiting += met - begun
        self.seconds += time.perf_counter() - met
        return result

    def _counted(self, own: Entries, result: Entries) -> Entries:
        self.count += 1
        self.sent += len(own.values)
        self.received += len(result.values)
        return result


def _entries(result: tf.IndexedSlices | tf.Tensor) -> Entries:
    if isinstance(result, tf.IndexedSlices):
        return Entries(result.indices.numpy(), result.values.numpy())
    return Entries(None, result.numpy())
