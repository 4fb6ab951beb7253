"""AdaScale's gain ratio: how much smaller the mean gradient of all nodes is than that of one."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.compression.base import NewValues
from hvd_sparse.compression.selection import Steps
from hvd_sparse.spec import Spec

SAMPLE = 256  # elements, at most
SHARE = 1 / 2500  # of the vector: 2% of what `recommended` sends at a density of 1%
LEAST = 16  # elements, or all
MEMORY = 0.99  # of the sums of squares, per exchange


class GainRatio(Steps):
    """The gain ratio of a vector's gradient (AdaScale, Johnson et al. 2020, section 3), estimated from a sample of it.

        r = mean over nodes of |gradient of the node|^2  /  |mean over nodes of the gradient|^2,  in [1, m]

    It is 1 if all nodes compute the same gradient, and m, their number, if they agree on nothing. In each exchange the
    nodes draw the same places of the vector and average their values there; both squares are sums over these places,
    and over past exchanges, which count less the older they are. It is 1 before the first exchange.

    Attributes:
        sample: the number of elements that are drawn in each exchange.
        sums: the squares of the mean and of one node, [2] float32.
    """

    def __init__(self, spec: Spec):
        own = spec._replace(name=f"{spec.name}_gain_ratio")
        super().__init__(own)
        self._parts, self._nodes = spec.parts, spec.senders
        self.sample = min(self.size, max(LEAST, min(SAMPLE, int(SHARE * self.size) - 1)))
        self.sums = tf.Variable(tf.zeros([2]), trainable=False, name=f"{own.name}_sums")

    def restart(self) -> None:
        """Forgets past exchanges, so that places are drawn as in a new training."""
        self.sums.assign(tf.zeros_like(self.sums))
        self.step.assign(0)

    def value(self) -> tf.Tensor:
        """The gain ratio, [] float32."""
        of_mean, of_one = tf.unstack(self.sums.read_value())
        return tf.clip_by_value(tf.math.divide_no_nan(of_one, of_mean), 1.0, float(self._nodes))

    def report(self, parts: tf.Tensor) -> tf.Tensor:
        """What the nodes have to average: the node's gradient at the drawn places, and the sum of their squares.

        Args:
            parts: [n, size], the gradients of the node's ranks.

        Returns:
            [sample + 1] float32.
        """
        drawn = parts
        if self.size > self.sample:
            seed = tf.stack([tf.constant(self.number, tf.int64), self.step.read_value()])
            places = tf.random.stateless_uniform([self.sample], seed, 0, self.size, tf.int32)
            drawn = tf.gather(parts, places, axis=1)
        own = tf.reduce_sum(tf.cast(drawn, tf.float32), axis=0) / float(self._parts)
        return tf.concat([own, [tf.reduce_sum(tf.square(own))]], 0)

    def absorbed(self, mean: tf.Tensor) -> NewValues:
        """The new values of the state once the mean of `report` over all nodes is known."""
        squares = tf.stack([tf.reduce_sum(tf.square(mean[:-1])), mean[-1]])
        sums = MEMORY * self.sums + (1.0 - MEMORY) * squares
        kept = tf.where(tf.reduce_all(tf.math.is_finite(sums)), sums, self.sums)  # squares may overflow
        return ((self.sums, kept), *self.next_step())
