"""Selectors, which choose k elements of a vector for one rank to send."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.compression.base import Coded, Compressor, Selection, Wrapper
from hvd_sparse.compression.block import Block as Block
from hvd_sparse.compression.held import HeldThreshold as HeldThreshold
from hvd_sparse.compression.quantizers import Quantizer, Where
from hvd_sparse.compression.selection import (
    Density,
    Steps,
    check_density,
    check_wire_dtype,
    kept_count,
    or_zeros,
    rounding_seed,
    slices_of,
)
from hvd_sparse.compression.thresholds import SampledThreshold as SampledThreshold
from hvd_sparse.spec import Spec


@dataclasses.dataclass(frozen=True)
class TopK(Compressor):
    """The k elements of largest magnitude, exactly (CommLib Eq. 2).

    Attributes:
        density: k / size, in (0, 1]; or a function of the step ([] int64) that returns it. k = max(1, round(density *
            size)), halves to even.
        wire_dtype: "float32", "float16" or "bfloat16", in which values travel; the rounding stays in the residual.
    """

    disk_name = "TopK"
    density: Density
    wire_dtype: str = "float32"

    def __post_init__(self):
        check_density(self.density)
        check_wire_dtype(self.wire_dtype)

    def create(self, spec: Spec) -> tf.Module:
        return Steps(spec)

    def count(self, size):
        return None if callable(self.density) else kept_count(self.density, size)

    def at_density(self, density):
        return dataclasses.replace(self, density=density)

    def compress(self, parts, state, residual=None):
        values, indices, new_residual, culprit = ops.feedback_topk(
            parts, or_zeros(residual, parts), state.kept(self.density), wire_dtype=tf.as_dtype(self.wire_dtype)
        )
        return Selection(slices_of(values, indices, state.size), new_residual, culprit, state.next_step())


@dataclasses.dataclass(frozen=True)
class MSTopK(Compressor):
    """Approximately the k elements of largest magnitude, found by two thresholds (CommLib Algorithm 1).

    Attributes:
        density: as in `TopK`.
        wire_dtype: as in `TopK`.
        samplings: N, the number of thresholds that are tried; the paper uses 30.
        seed: seed of the random window between the thresholds; it advances with the step and differs between vectors.
    """

    disk_name = "MSTopK"
    density: Density
    wire_dtype: str = "float32"
    samplings: int = 30
    seed: int = 0

    def __post_init__(self):
        check_density(self.density)
        check_wire_dtype(self.wire_dtype)
        if self.samplings < 1:
            raise ValueError(f"Expected samplings of at least 1, got {self.samplings}.")

    def create(self, spec: Spec) -> tf.Module:
        return Steps(spec)

    def count(self, size):
        return None if callable(self.density) else kept_count(self.density, size)

    def at_density(self, density):
        return dataclasses.replace(self, density=density)

    def compress(self, parts, state, residual=None):
        values, indices, new_residual, culprit = ops.feedback_mstopk(
            parts,
            or_zeros(residual, parts),
            state.kept(self.density),
            samplings=self.samplings,
            seed=state.seed(self.seed),
            wire_dtype=tf.as_dtype(self.wire_dtype),
        )
        return Selection(slices_of(values, indices, state.size), new_residual, culprit, state.next_step())


@dataclasses.dataclass(frozen=True)
class BucketTopK(Compressor):
    """The k elements of largest magnitude of every bucket of consecutive elements, exactly (SparCML 8.3).

    Every part of the vector contributes, and each bucket is processed independently of the others.

    Attributes:
        k: elements sent from each bucket, in [1, bucket]; a shorter last bucket sends min(k, its length). Of equal
            magnitudes the lower index wins.
        bucket: the number of consecutive elements in a bucket.
        wire_dtype: as in `TopK`.
    """

    disk_name = "BucketTopK"
    k: int
    bucket: int = 512
    wire_dtype: str = "float32"

    @property
    def share(self):
        return self.k / self.bucket

    def __post_init__(self):
        if not 1 <= self.k <= self.bucket:
            raise ValueError(f"Expected k in [1, bucket], got k = {self.k} and bucket = {self.bucket}.")
        check_wire_dtype(self.wire_dtype)

    def create(self, spec: Spec) -> tf.Module:
        return tf.Module()

    def count(self, size):
        return size // self.bucket * self.k + min(size % self.bucket, self.k)

    def at_density(self, density):
        """The same compressor with the whole number k that comes closest to the density."""
        return dataclasses.replace(self, k=kept_count(density, self.bucket))

    def compress(self, parts, state, residual=None):
        values, indices, new_residual, culprit = ops.feedback_bucket_topk(
            parts, or_zeros(residual, parts), self.k, self.bucket, wire_dtype=tf.as_dtype(self.wire_dtype)
        )
        return Selection(slices_of(values, indices, parts.shape[1]), new_residual, culprit)


@dataclasses.dataclass(frozen=True)
class Quantized(Wrapper):
    """Quantizes the values that another compressor selects (SparCML 4, 6; Aji and Heafield 2017, 5.4).

    The selection holds what the receivers decode. Inside error feedback, the rounding error stays in the residual, up
    to float32's rounding of the difference.

    Attributes:
        compressor: one that sends float32, without error feedback: `ErrorFeedback` goes around this, not inside.
        quantizer: encodes the selected values, in their order.
        keeps_error: whether the rounding error is kept; SparCML's Algorithm 1 drops it.
        seed: seed of random rounding; it advances with the step and differs between vectors and ranks.
    """

    disk_name = "Quantized"
    has_own_code = True
    compressor: Compressor
    quantizer: Quantizer
    keeps_error: bool = True
    seed: int = 0

    wire_dtype = "float32"

    def __post_init__(self):
        if self.compressor.feeds_back:
            raise ValueError(
                "Quantized must be inside the feedback, which keeps the rounding error: write "
                "ErrorFeedback(Quantized(compressor, quantizer))."
            )
        if self.compressor.wire_dtype != "float32":
            raise ValueError(
                f"Quantized encodes float32 values, got a compressor with wire_dtype {self.compressor.wire_dtype!r}: "
                "leave out its wire_dtype."
            )

    def create(self, spec: Spec) -> tf.Module:
        return _Rounding(spec, self.compressor.create(spec))

    def compress(self, parts, state, residual=None):
        selection = self.compressor.compress(parts, state.inner, residual)
        values, overflow = self._codable(harmless(selection))
        where = Where(selection.slices.indices, state.matrices)
        codes, scales = self.quantizer.encode(values, state.seed(self.seed), where)
        decoded = tf.ensure_shape(self.quantizer.decode(codes, scales, tf.size(values), where), values.shape)
        new_residual = selection.residual
        if self.keeps_error:
            places = selection.slices.indices[:, tf.newaxis]
            new_residual = tf.tensor_scatter_nd_add(new_residual, places, values - decoded)
        culprit = tf.where((selection.culprit == 0) & overflow, 1 + tf.shape(parts)[0], selection.culprit)
        return Selection(
            slices=tf.IndexedSlices(decoded, selection.slices.indices, selection.slices.dense_shape),
            residual=new_residual,
            culprit=culprit,
            updates=(*selection.updates, *state.next_step()),
            coded=Coded(codes, scales, self.quantizer, state.matrices),
        )

    def _codable(self, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The values and whether any scale may overflow; if so, zeros replace the values."""
        overflow = ~tf.reduce_all(tf.math.is_finite(values * self.quantizer.headroom))
        return tf.where(overflow, tf.zeros_like(values), values), overflow


def harmless(selection: Selection) -> tf.Tensor:
    """The values [k] float32, safe to compute with: all are zero if there is a culprit."""
    values = tf.cast(selection.slices.values, tf.float32)
    return tf.where(selection.culprit == 0, values, tf.zeros_like(values))


class _Rounding(tf.Module):
    """The state of `Quantized`: the number of roundings so far, and the state of the wrapped compressor."""

    def __init__(self, spec: Spec, inner: tf.Module):
        super().__init__()
        self.inner = inner
        self._spec = spec
        self.matrices = spec.matrices
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"{spec.name}_rounding_step")

    def seed(self, base: int) -> tf.Tensor:
        return rounding_seed(base, self._spec, self.step.read_value())

    def next_step(self) -> tuple[tuple[tf.Variable, tf.Tensor], ...]:
        return ((self.step, self.step + 1),)
