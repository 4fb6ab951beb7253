"""The sum of the gradients that a server has gathered for its next update."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.servers.messages import Entries


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
        total = self._sum.read_value()
        return total if self.count == 1 else total / float(self.count)

    def clear(self) -> None:
        """Begins anew."""
        if not self._is_dense:
            for places in self._touched:
                ops.library().hvd_servers_put(
                    variables=[self._sum.handle], values=tf.zeros(places.shape), places=places, everywhere=False
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
