"""The sum of the gradients that a server has gathered for its next update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.servers.messages import Entries

_SPARSE = 16  # elements to an entry, from which on to sort entries is faster than to pass over all elements


class Gathering(Protocol):
    """A sum of gradients.

    Attributes:
        count: how many have been added since it was cleared.
    """

    count: int

    def add(self, gradient: Entries) -> None:
        """Adds a gradient that fits."""

    def values(self) -> np.ndarray:
        """What has been added, [size] float32; a copy."""

    def restore(self, values: np.ndarray, count: int) -> None:
        """Takes up what `values` gave, of so many gradients."""

    def mean(self) -> Any:
        """Of what has been added, as parameters apply it; to be let go of before the next is added."""

    def clear(self) -> None:
        """Begins anew."""


class GradientSum:
    """A vector [size] float32 that costs what is added to it: sparse gradients touch no other elements.

    Attributes:
        count: how many gradients have been added since it was cleared.
    """

    def __init__(self, size: int):
        with tf.device("CPU:0"):
            self._sum = tf.Variable(tf.zeros([size]), trainable=False, name="gradient_sum")
        self._touched: list[tf.Tensor] = []  # places of sparse gradients
        self._is_dense = False  # whether other places may hold something, too
        self._is_new = True  # whether what is there is of the last time
        self.count = 0

    def add(self, gradient: Entries) -> None:
        """Adds a gradient that fits."""
        values = tf.constant(gradient.values)
        if gradient.indices is None:
            self._add_dense(values)
        else:
            self._add_sparse(values, tf.constant(gradient.indices))
        self._is_new = False
        self.count += 1

    def values(self) -> np.ndarray:
        """What has been added, [size] float32; a copy."""
        return np.zeros(self._sum.shape, np.float32) if self._is_new else self._sum.numpy().copy()

    def restore(self, values: np.ndarray, count: int) -> None:
        """Takes up what `values` gave, of so many gradients."""
        self._sum.assign(values)
        self._touched, self._is_dense, self._is_new, self.count = [], True, False, count

    def mean(self) -> tf.Tensor:
        """Of what has been added, [size] float32; to be let go of before the next is added."""
        total = tf.raw_ops.ReadVariableOp(resource=self._sum.handle, dtype=tf.float32)
        return total if self.count == 1 else total / float(self.count)

    def clear(self) -> None:
        """Begins anew."""
        if not self._is_dense:
            for places in self._touched:
                zeros = np.zeros(places.shape, np.float32)
                ops.library().hvd_servers_put(
                    variables=[self._sum.handle], values=zeros, places=places, everywhere=False
                )
        self._touched, self._is_new, self.count = [], True, 0

    def _add_dense(self, values: tf.Tensor) -> None:
        if self._is_new:
            self._sum.assign(values)
        else:
            self._sum.assign_add(values)
        self._is_dense = True

    def _add_sparse(self, values: tf.Tensor, places: tf.Tensor) -> None:
        if self._is_new and self._is_dense:
            self._sum.assign(tf.zeros_like(self._sum))
            self._is_dense = False
        ops.library().hvd_servers_add(sum=self._sum.handle, values=values, places=places)
        self._touched.append(places)


class Touched(NamedTuple):
    """Where a gradient is not zero, and its values there.

    Attributes:
        values: [k] float32.
        indices: [k] int32, all different.
    """

    values: np.ndarray
    indices: np.ndarray


class EntrySum:
    """The entries of gradients alone: nothing is as large as the shard.

    Attributes:
        count: how many gradients have been added since it was cleared.
    """

    def __init__(self, size: int):
        self._size = size
        self._parts: list[Touched] = []
        self.count = 0

    def add(self, gradient: Entries) -> None:
        """Adds a gradient that fits."""
        self._parts.append(_touched(gradient))
        self.count += 1

    def values(self) -> np.ndarray:
        """What has been added, [size] float32; a copy."""
        total = np.zeros(self._size, np.float32)
        for part in self._parts:
            total[part.indices] += part.values
        return total

    def restore(self, values: np.ndarray, count: int) -> None:
        """Takes up what `values` gave, of so many gradients."""
        self._parts, self.count = [_touched(Entries(values))], count

    def mean(self) -> Touched:
        """Of what has been added, where that is not zero, in ascending order of indices."""
        sparse = _SPARSE * sum(len(part.values) for part in self._parts) < self._size
        total = _sum(self._parts) if sparse or len(self._parts) == 1 else _touched(Entries(self.values()))
        return total if self.count == 1 else Touched(total.values / np.float32(self.count), total.indices)

    def clear(self) -> None:
        """Begins anew."""
        self._parts, self.count = [], 0


def _sum(parts: Sequence[Touched]) -> Touched:
    """Of all, with ascending indices; added in the order in which they come."""
    if len(parts) == 1 and (np.diff(parts[0].indices) > 0).all():
        return parts[0]
    indices, places = np.unique(np.concatenate([part.indices for part in parts]), return_inverse=True)
    total = np.zeros(len(indices), np.float32)
    for part, own in zip(parts, np.split(places, np.cumsum([len(part.values) for part in parts])[:-1]), strict=True):
        total[own] += part.values
    return _touched(Entries(total, indices))


def _touched(gradient: Entries) -> Touched:
    if gradient.indices is None:
        indices = np.flatnonzero(gradient.values).astype(np.int32)
        return Touched(gradient.values[indices], indices)
    there = gradient.values != 0
    if there.all():
        return Touched(gradient.values, gradient.indices)
    return Touched(gradient.values[there], gradient.indices[there])
