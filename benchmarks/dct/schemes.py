"""Alternatives to thresholded activations at a split: the schemes that `benchmarks.dct.appendix` describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from hvd_sparse.pipeline import rows
from hvd_sparse.pipeline.messages import Wire, activation_bytes, value_bytes
from hvd_sparse.pipeline.threshold import kept_of

WIDTH, BATCH = 256, 32
SPARSITIES, JUDGED = (0.5, 0.75, 0.9), 0.9
HASHES = 3  # rows of a count sketch
OURS = "DCT-MP"


class Scheme(Protocol):
    """How activations and their gradients cross the split, [seeds, rows, WIDTH] each.

    Attributes:
        bytes_of_row: bytes per row, forward and backward.
    """

    bytes_of_row: tuple[int, int]

    def forward(self, x: tf.Tensor, samples: tf.Tensor | None = None) -> tuple[tf.Tensor, Any]:
        """What arrives, and what the backward pass needs; `samples` [seeds, rows], numbers, are given in training."""

    def backward(self, gradient: tf.Tensor, kept: Any) -> tf.Tensor:
        """What arrives of the gradient."""


_ALL = value_bytes(1, WIDTH, "float32")


class Dense:
    """Sends everything in both directions."""

    bytes_of_row = (_ALL, _ALL)

    def forward(self, x, samples=None):
        return x, None

    def backward(self, gradient, kept):
        return gradient


class SameMask:
    """DCT-MP, Algorithm 2."""

    def __init__(self, sparsity: float):
        self._count = kept_of(WIDTH, sparsity)
        self.bytes_of_row = bytes_of(sparsity)

    def forward(self, x, samples=None):
        return rows.threshold_rows(x, self._count)

    def backward(self, gradient, kept):
        return rows.mask_rows(gradient, kept)


class GaussianSketch:
    """Activations times a random matrix, and back by its transpose; the same for the gradient."""

    def __init__(self, sparsity: float):
        count = sum(bytes_of(sparsity)) // 8
        drawn = np.random.default_rng(0).normal(0.0, count**-0.5, (WIDTH, count))
        self._there_and_back = tf.constant(drawn @ drawn.T, tf.float32)
        self.bytes_of_row = (4 * count, 4 * count)

    def forward(self, x, samples=None):
        return x @ self._there_and_back, None

    def backward(self, gradient, kept):
        return gradient @ self._there_and_back


class LargestOfGradient(Dense):
    """The largest elements of the gradient's rows, with their positions."""

    def __init__(self, sparsity: float, feeds_back: bool, seeds: int):
        self._count = _most_with_positions(bytes_of(sparsity)[1])
        self.bytes_of_row = (_ALL, activation_bytes(1, WIDTH, Wire("float32", self._count)))
        self.residual = tf.Variable(tf.zeros([seeds, BATCH, WIDTH])) if feeds_back else None

    def backward(self, gradient, kept):
        total = gradient if self.residual is None else gradient + self.residual
        sent = rows.threshold_rows(total, self._count)[0]
        if self.residual is not None:
            self.residual.assign(total - sent)
        return sent


class LargestBothWays(LargestOfGradient):
    """The largest elements of activations forward, and those of gradients backward, at other positions."""

    def __init__(self, sparsity: float, seeds: int):
        super().__init__(sparsity, True, seeds)
        self._forward = SameMask(sparsity)
        self.bytes_of_row = (self._forward.bytes_of_row[0], self.bytes_of_row[1])

    def forward(self, x, samples=None):
        return self._forward.forward(x)


class CountSketch(Dense):
    """Counters into which elements of the gradient's rows are added with random signs (Charikar et al. 2002)."""

    def __init__(self, sparsity: float):
        counters, random = bytes_of(sparsity)[1] // 4 // HASHES, np.random.default_rng(0)
        self._places = random.integers(counters, size=(HASHES, WIDTH))
        self._signs = tf.constant(random.choice([-1.0, 1.0], (HASHES, WIDTH)), tf.float32)
        self._counters = counters
        self.bytes_of_row = (_ALL, 4 * HASHES * counters)

    def backward(self, gradient, kept):
        estimates = [self._estimate(gradient, number) for number in range(HASHES)]
        middle = tf.sort(tf.stack(estimates), axis=0)[HASHES // 2]
        return rows.threshold_rows(middle, self._counters)[0]

    def _estimate(self, gradient: tf.Tensor, number: int) -> tf.Tensor:
        """The estimates of all elements by one row of counters."""
        signs, places = self._signs[number], self._places[number]
        counted = (gradient * signs) @ tf.one_hot(places, self._counters)
        return tf.gather(counted, places, axis=-1) * signs


class WholeNumbers:
    """Sends everything in both directions, rounded to integers of few bits with a scale for each row."""

    def __init__(self, dtype: str):
        self._largest = {"int8": 127.0, "int4": 7.0}[dtype]
        self.bytes_of_row = (value_bytes(1, WIDTH, dtype),) * 2

    def forward(self, x, samples=None):
        return self._rounded(x), None

    def backward(self, gradient, kept):
        return self._rounded(gradient)

    def _rounded(self, x: tf.Tensor) -> tf.Tensor:
        scales = tf.reduce_max(tf.abs(x), axis=-1, keepdims=True) / self._largest
        return tf.round(tf.math.divide_no_nan(x, scales)) * scales


class Changes(WholeNumbers):
    """As `WholeNumbers`, but forward the change of a sample's activations since last time (AQ-SGD, Algorithm 1)."""

    def __init__(self, dtype: str, seeds: int, samples: int):
        super().__init__(dtype)
        self.known = tf.Variable(tf.zeros([seeds, samples, WIDTH]))
        self._is_known = tf.Variable(tf.zeros([seeds, samples], tf.bool))

    def forward(self, x, samples=None):
        if samples is None:
            return x, None
        before = tf.gather(self.known, samples, batch_dims=1)
        is_known = tf.gather(self._is_known, samples, batch_dims=1)[..., None]
        arrived = tf.where(is_known, before + self._rounded(x - before), x)
        seeds = tf.broadcast_to(tf.range(x.shape[0])[:, None], samples.shape)
        places = tf.stack([seeds, tf.cast(samples, tf.int32)], axis=-1)
        self.known.scatter_nd_update(places, arrived)
        self._is_known.scatter_nd_update(places, tf.ones(samples.shape, tf.bool))
        return arrived, None


def bytes_of(sparsity: float) -> tuple[int, int]:
    """The bytes that DCT-MP sends per row, forward and backward."""
    kept = kept_of(WIDTH, sparsity)
    return activation_bytes(1, WIDTH, Wire("float32", kept)), value_bytes(1, kept, "float32")


def _most_with_positions(given: int) -> int:
    """How many values with their positions fit into this many bytes."""
    fitting = [kept for kept in range(1, WIDTH) if activation_bytes(1, WIDTH, Wire("float32", kept)) <= given]
    return max(fitting)


AS_MANY: dict[str, Callable[[float, int], Scheme]] = {
    "Gaussian sketch": lambda sparsity, seeds: GaussianSketch(sparsity),
    "largest of both, error feedback": LargestBothWays,
}
"""Schemes with the bytes of DCT-MP, by name: of its sparsity, and the number of seeds."""
BACKWARD: dict[str, Callable[[float, int], Scheme]] = {
    "largest of the gradient, error feedback": lambda sparsity, seeds: LargestOfGradient(sparsity, True, seeds),
    "largest of the gradient": lambda sparsity, seeds: LargestOfGradient(sparsity, False, seeds),
    "count sketch of the gradient": lambda sparsity, seeds: CountSketch(sparsity),
}
"""Schemes with its bytes backward, which send all forward."""
IN_FEWER_BITS: dict[str, tuple[float, Callable[[int, int], Scheme]]] = {
    "int8": (0.75, lambda seeds, samples: WholeNumbers("int8")),
    "int4": (0.9, lambda seeds, samples: WholeNumbers("int4")),
    "int4 of changes (AQ-SGD)": (0.9, lambda seeds, samples: Changes("int4", seeds, samples)),
}
"""Schemes that send all, by name: DCT-MP's sparsity at about their bytes, and of the numbers of seeds and samples."""
SCHEMES = {OURS: lambda sparsity, seeds: SameMask(sparsity), **AS_MANY, **BACKWARD}
