"""Sparsification by a threshold that is held for many steps and taken anew only now and then."""

from __future__ import annotations

import dataclasses
import math

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.compression.base import Compressor, Selection
from hvd_sparse.compression.selection import Density, check_density, check_wire_dtype, or_zeros, slices_of
from hvd_sparse.compression.thresholds import ByVariable
from hvd_sparse.spec import Spec

_TO_FLOAT32 = 1.0 - 2.0**-23  # a density that was rounded to float32 gives the same count


def held_count(density: float, size: int) -> int:
    """k = size - floor(size * (1 - density)), at least 1: density * size, rounded up."""
    return min(size, max(1, math.ceil(density * size * _TO_FLOAT32)))


@dataclasses.dataclass(frozen=True)
class HeldThreshold(Compressor):
    """Sends the elements that reach a threshold held for many steps (DCT-DP, Gupta et al. 2021, 2.1, Algorithm 1).

    Each variable in the vector, or in the shard, has its own threshold. Every `life` steps it becomes the k-th largest
    magnitude, with k = N - floor(N (1 - density)) of the N elements, or 0 if k = N; the steps in between cost no more
    than one pass. At first thresholds are taken more often, at steps 1, 2, 4, 8 and so on, as the residual is still
    empty at step 0. The number of elements that reach the threshold differs between ranks and steps. All ties are
    sent, but no zeros. If fewer than k / 4 or more than 4 k elements reach it, the threshold is out of date, and the
    k / 4 or 4 k elements of largest magnitude are sent; telemetry counts how often this happens. If k changes, the
    threshold is taken anew at once.

    Attributes:
        density: 1 - eta, where eta is the paper's sparsity factor; otherwise as in `TopK`, whose k is at most one less.
        wire_dtype: as in `TopK`.
        life: L, steps from one threshold to the next, except before step `life`.
        drain: probability, in each step, that the residual is dropped; 10^-6 in the paper, against stale updates of
            asynchronous trainers (Remark 2). It applies with error feedback; leave it 0 for the servers' `pull=`.
        seed: seed of the steps in which that happens, which are the same on every rank for one vector.
    """

    disk_name = "HeldThreshold"
    counts_differ = True
    density: Density
    wire_dtype: str = "float32"
    life: int = 1000
    drain: float = 0.0
    seed: int = 0

    def __post_init__(self):
        check_density(self.density)
        check_wire_dtype(self.wire_dtype)
        if self.life < 1:
            raise ValueError(f"Expected a life of at least 1 step from one threshold to the next, got {self.life}.")
        if not 0.0 <= self.drain <= 1.0:
            raise ValueError(f"Expected drain in [0, 1], the probability in each step, got {self.drain}.")

    def create(self, spec: Spec) -> tf.Module:
        return Thresholds(spec)

    def count(self, size):
        return None

    def expected(self, size):
        return None if callable(self.density) else held_count(self.density, size)

    def at_density(self, density):
        return dataclasses.replace(self, density=density)

    def compress(self, parts, state, residual=None):
        counts = state.kept(self.density)
        due = self._is_due(state.step) | (counts != state.counts)
        values, indices, new_residual, culprit, thresholds, clamped = ops.library().hvd_sparse_feedback_held(
            parts=parts,
            residual=self._not_drained(or_zeros(residual, parts), state),
            k=counts,
            thresholds=state.thresholds,
            due=due,
            ends=list(state.ends),
            wire_dtype=tf.as_dtype(self.wire_dtype),
        )
        updates = (
            (state.thresholds, thresholds),
            (state.counts, counts),
            (state.clamped, state.clamped + tf.math.count_nonzero(clamped)),
            *state.next_step(),
        )
        return Selection(slices_of(values, indices, state.size), new_residual, culprit, updates)

    def _is_due(self, step: tf.Tensor) -> tf.Tensor:
        """Whether thresholds are taken anew in a step: every `life` steps, and at powers of two before step `life`."""
        step = tf.convert_to_tensor(step)
        is_power = tf.bitwise.bitwise_and(step, step - 1) == 0
        return (step % self.life == 0) | (is_power & (step < self.life))

    def _not_drained(self, residual: tf.Tensor, state: Thresholds) -> tf.Tensor:
        """The residual, or zeros if this step drains it."""
        if self.drain == 0.0:
            return residual
        seeds = tf.stack([state.seed(self.seed), tf.constant(0, tf.int64)])
        drained = tf.random.stateless_uniform([], seeds, dtype=tf.float64) < self.drain
        return tf.cond(drained, lambda: tf.zeros_like(residual), lambda: tf.convert_to_tensor(residual))


class Thresholds(ByVariable):
    """The state of `HeldThreshold`.

    Attributes:
        thresholds: [variables] float32, for the next step unless new ones are due then.
        counts: [variables] int32, the k for which thresholds were taken; 0 before the first step.
        clamped: [] int64, how often the elements of a variable that reached its threshold were too few or too many.
    """

    def __init__(self, spec: Spec):
        super().__init__(spec)
        zeros = tf.zeros([len(self.ends)])
        self.thresholds = tf.Variable(zeros, trainable=False, name=f"{spec.name}_thresholds")
        self.counts = tf.Variable(tf.cast(zeros, tf.int32), trainable=False, name=f"{spec.name}_counts")
        self.clamped = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"{spec.name}_clamped")

    def kept(self, density: Density) -> tf.Tensor:
        """k of each variable, [variables] int32."""
        if not callable(density):
            return tf.constant([held_count(density, size) for size in self.sizes], tf.int32)
        shares = tf.cast(density(self.step), tf.float64) * tf.constant(self.sizes, tf.float64)
        counts = tf.cast(tf.math.ceil(shares * _TO_FLOAT32), tf.int32)
        return tf.clip_by_value(counts, 1, tf.constant(self.sizes, tf.int32))
