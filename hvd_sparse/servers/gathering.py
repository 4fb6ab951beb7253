"""The sum of the gradients that a server has gathered for its next update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.servers.messages import Entries
from hvd_sparse.servers.pages import use_large_pages

_SPARSE = 16  # elements per entry from which sorting the entries is faster than passing over all elements


class Gathering(Protocol):
    """A sum of gradients.

    Attributes:
        count: number of gradients added since it was cleared.
    """

    count: int

    def add(self, gradient: Entries) -> None:
        """Adds a gradient; it must fit."""

    def values(self) -> np.ndarray:
        """The sum, [size] float32; a copy."""

    def restore(self, values: np.ndarray, count: int) -> None:
        """Restores what `values` returned, with the number of gradients in it."""

    def mean(self) -> Any:
        """The mean of the gradients, as parameters apply it; release it before the next is added."""

    def clear(self) -> None:
        """Starts again at zero."""


class GradientSum:
    """A vector [size] float32 whose cost is that of what is added: sparse gradients touch no other elements.

    Attributes:
        count: number of gradients added since it was cleared.
    """

    def __init__(self, size: int):
        with tf.device("CPU:0"):
            self._sum = tf.Variable(tf.zeros([size]), trainable=False, name="gradient_sum")
        use_large_pages([self._sum])
        self._touched: list[tf.Tensor] = []  # places of sparse gradients
        self._is_dense = False  # whether other places may be nonzero, too
        self._is_new = True  # whether the contents are left over from the last sum
        self.count = 0

    def add(self, gradient: Entries) -> None:
        """Adds a gradient; it must fit."""
        values = tf.constant(gradient.values)
        if gradient.indices is None:
            self._add_dense(values)
        else:
            self._add_sparse(values, tf.constant(gradient.indices))
        self._is_new = False
        self.count += 1

    def values(self) -> np.ndarray:
        """The sum, [size] float32; a copy."""
        return np.zeros(self._sum.shape, np.float32) if self._is_new else self._sum.numpy().copy()

    def restore(self, values: np.ndarray, count: int) -> None:
        """Restores what `values` returned, with the number of gradients in it."""
        self._sum.assign(values)
        self._touched, self._is_dense, self._is_new, self.count = [], True, False, count

    def mean(self) -> tf.Tensor:
        """The mean of the gradients, [size] float32; release it before the next is added."""
        total = tf.raw_ops.ReadVariableOp(resource=self._sum.handle, dtype=tf.float32)
        return total if self.count == 1 else total / float(self.count)

    def clear(self) -> None:
        """Starts again at zero."""
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
    """The entries of the gradients only: nothing is as large as the shard.

    Attributes:
        count: number of gradients added since it was cleared.
    """

    def __init__(self, size: int):
        self._size = size
        self._parts: list[Touched] = []
        self.count = 0

    def add(self, gradient: Entries) -> None:
        """Adds a gradient; it must fit."""
        self._parts.append(_touched(gradient))
        self.count += 1

    def values(self) -> np.ndarray:
        """The sum, [size] float32; a copy."""
        total = np.zeros(self._size, np.float32)
        for part in self._parts:
            total[part.indices] += part.values
        return total

    def restore(self, values: np.ndarray, count: int) -> None:
        """Restores what `values` returned, with the number of gradients in it."""
        self._parts, self.count = [_touched(Entries(values))], count

    def mean(self) -> Touched:
        """The nonzero entries of the mean, in ascending order of indices."""
        sparse = _SPARSE * sum(len(part.values) for part in self._parts) < self._size
        total = _sum(self._parts) if sparse or len(self._parts) == 1 else _touched(Entries(self.values()))
        return total if self.count == 1 else Touched(total.values / np.float32(self.count), total.indices)

    def clear(self) -> None:
        """Starts again at zero."""
        self._parts, self.count = [], 0


def _sum(parts: Sequence[Touched]) -> Touched:
    """The sum of all parts, with ascending indices; added in the order of the list."""
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
