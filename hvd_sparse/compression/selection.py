"""What selectors share: the number of elements that are sent, and the step count."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_sparse.spec import Spec

Density = float | Callable[[tf.Tensor], tf.Tensor]


def check_density(density: Density) -> None:
    """Raises ValueError if a density is neither a function nor a number in (0, 1]."""
    if callable(density) or (_is_number(density) and 0.0 < density <= 1.0):
        return
    raise ValueError(
        f"Expected a density in (0, 1], got {density!r}. It is the share of the gradient that is sent: 0.01 sends 1%."
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_wire_dtype(wire_dtype: str) -> None:
    """Raises ValueError if values cannot travel in this dtype."""
    if wire_dtype not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"Expected wire_dtype 'float32', 'float16' or 'bfloat16', got {wire_dtype!r}.")


def kept_count(density: float, size: int) -> int:
    """k = max(1, round(density * size)), halves to even."""
    return max(1, round(density * size))


class Steps(tf.Module):
    """The state of a selector, or of what else draws at random: the number of its selections so far."""

    def __init__(self, spec: Spec):
        super().__init__()
        self.size = spec.size
        self.number = spec.number
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"{spec.name}_step")

    def kept(self, density: Density) -> int | tf.Tensor:
        """k for this step: a number, or a tensor if the density is a function of the step."""
        if not callable(density):
            return kept_count(density, self.size)
        share = tf.cast(density(self.step), tf.float64)
        count = tf.cast(tf.round(share * self.size), tf.int32)
        return tf.clip_by_value(count, 1, self.size)

    def seed(self, base: int) -> tf.Tensor:
        """base + 2^32 * number of the vector + step, int64: the same on a resumed run."""
        return self.step + (base + (self.number << 32))

    def next_step(self) -> tuple[tuple[tf.Variable, tf.Tensor], ...]:
        """The values to assign when the exchange is committed."""
        return ((self.step, self.step + 1),)


def rounding_seed(base: int, spec: Spec, step: tf.Tensor) -> tf.Tensor:
    """The seed of stochastic rounding, [] int64: different for each step, vector and rank, the same on a resumed run.

    It is base + 2^48 * rank + 2^32 * number of the vector + step, modulo 2^64. With the same seed on all ranks, their
    errors would not cancel.
    """
    offset = (base + (spec.grid.world.world_rank << 48) + (spec.number << 32)) % 2**64
    return step + (offset - 2**64 if offset >= 2**63 else offset)


def slices_of(values: tf.Tensor, indices: tf.Tensor, size: int) -> tf.IndexedSlices:
    """The elements of a vector [size] that are sent."""
    return tf.IndexedSlices(values, indices, tf.constant([size], tf.int32))


def or_zeros(residual: tf.Tensor | None, parts: tf.Tensor) -> tf.Tensor:
    """The residual, or [size] float32 zeros for parts [n, size]."""
    return tf.zeros([parts.shape[1]], tf.float32) if residual is None else residual
