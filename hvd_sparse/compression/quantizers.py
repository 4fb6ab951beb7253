"""Quantizers, which encode values in fewer bits."""

from __future__ import annotations

import abc
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.ops import Number
from hvd_sparse.spec import Matrix


class Where(NamedTuple):
    """The positions of values in a vector.

    Attributes:
        indices: [n] int32, the indices of the values in the vector.
        matrices: the matrices that make up the vector, see `Spec.matrices`; empty if all of it is one column.
    """

    indices: tf.Tensor
    matrices: tuple[Matrix, ...] = ()


class Quantizer(abc.ABC):
    """Encodes values as codes of a few bits each and a few scales, and decodes them again.

    Decoding needs the codes, the scales and the positions of the values, and nothing else.

    Attributes:
        by_place: whether the number of scales depends on the positions; `encode` and `decode` then need `where`.
        headroom: values times this factor have to be finite, so that the scales are.
    """

    by_place = False
    headroom = 1.0

    @abc.abstractmethod
    def code_bytes(self, count: int) -> int:
        """The bytes of the codes of `count` values."""

    @abc.abstractmethod
    def scale_count(self, count: int) -> int:
        """The number of scales of `count` values; the maximum if it depends on their positions."""

    @abc.abstractmethod
    def encode(self, values: tf.Tensor, seed: Number, where: Where | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Encodes values.

        Args:
            values: [n] float32, finite, n < 2^31.
            seed: seed of random rounding, if there is any: a number or a scalar int64 tensor.
            where: their positions; None treats them as one column.

        Returns:
            Codes [code_bytes(n)] uint8 and scales [scale_count(n)] float32.

        Raises:
            tf.errors.InvalidArgumentError: if a value is not finite (the message says which), or an index is outside
                all matrices.
        """

    @abc.abstractmethod
    def decode(self, codes: tf.Tensor, scales: tf.Tensor, count: Number, where: Where | None = None) -> tf.Tensor:
        """Decodes values.

        Args:
            codes: as `encode` returned them.
            scales: as `encode` returned them.
            count: n, a number or a scalar tensor.
            where: as it was passed to `encode`.

        Returns:
            [n] float32.

        Raises:
            tf.errors.InvalidArgumentError: if codes and scales are not those of n values, a scale is negative or not
                finite, or an index is outside all matrices.
        """

    def encode_rows(self, values: tf.Tensor, seed: Number) -> tuple[tf.Tensor, tf.Tensor]:
        """Encodes the rows of a matrix, each by itself; only if `by_place` is False.

        Args:
            values: [rows, n] float32, finite.
            seed: that of the first row; each further row has the next one.

        Returns:
            Codes [rows, code_bytes(n)] uint8 and scales [rows, scale_count(n)] float32.
        """
        coded = [self.encode(row, seed + number) for number, row in enumerate(tf.unstack(values))]
        codes, scales = zip(*coded, strict=True)
        return tf.stack(codes), tf.stack(scales)

    def decode_rows(self, codes: tf.Tensor, scales: tf.Tensor, count: Number) -> tf.Tensor:
        """Decodes the values of several senders with equally many each; only if `by_place` is False.

        Args:
            codes: [senders, code_bytes(n)] uint8.
            scales: [senders, scale_count(n)] float32.
            count: n, a number or a scalar tensor.

        Returns:
            [senders * n] float32.
        """
        rows = zip(tf.unstack(codes), tf.unstack(scales), strict=True)
        return tf.concat([self.decode(*row, count) for row in rows], 0)


@dataclasses.dataclass(frozen=True)
class Plain(Quantizer):
    """Casts values to a dtype of 16 or 32 bits, without scales.

    Attributes:
        dtype: "float32", "float16" or "bfloat16".
    """

    disk_name = "Plain"
    dtype: str = "float32"

    @property
    def headroom(self) -> float:  # type: ignore[override]
        """How much larger float32's largest number is than the dtype's."""
        return tf.float32.max / float(tf.as_dtype(self.dtype).max)

    def code_bytes(self, count):
        return count * tf.as_dtype(self.dtype).size

    def scale_count(self, count):
        return 0

    def encode(self, values, seed, where=None):
        codes = tf.bitcast(tf.cast(values, self.dtype), tf.uint8)
        return tf.reshape(codes, [-1]), tf.zeros([0], tf.float32)

    def decode(self, codes, scales, count, where=None):
        dtype = tf.as_dtype(self.dtype)
        rows = tf.reshape(codes, tf.stack([tf.cast(count, tf.int32), dtype.size]))
        return tf.cast(tf.bitcast(rows, dtype), tf.float32)


@dataclasses.dataclass(frozen=True)
class QSGD(Quantizer):
    """Rounds values at random to a few levels of their bucket's scale, so that the expectation is the value itself.

    Each bucket of consecutive values has one scale. With s = 2^(bits - 1) - 1 levels, |x| / scale * s is rounded up
    with a probability equal to its fraction f, so the variance is (scale / s)^2 f (1 - f) (SparCML 6, after QSGD,
    which uses L2 norms). Zeros, and buckets whose scale is below s * 2^-104 (5e-32 s), decode to zeros.

    Attributes:
        bits: bits per value including the sign: 2, 4 or 8, for 1, 7 or 127 levels.
        bucket: values per scale, at least 1; the last bucket may be shorter.
        norm: the scale: "max", the largest magnitude, or "l2", the root of the sum of squares, with which most values
            of a long bucket become 0 at few bits.
    """

    disk_name = "QSGD"
    bits: int = 4
    bucket: int = 1024
    norm: str = "max"

    def __post_init__(self):
        if self.bits not in (2, 4, 8):
            raise ValueError(f"Expected 2, 4 or 8 bits, got {self.bits}.")
        if self.bucket < 1:
            raise ValueError(f"Expected a bucket of at least 1 value, got {self.bucket}.")
        if self.norm not in ("max", "l2"):
            raise ValueError(f"Expected norm 'max' or 'l2', got {self.norm!r}.")

    @property
    def levels(self) -> int:
        """The number s of levels above zero."""
        return 2 ** (self.bits - 1) - 1

    @property
    def headroom(self) -> float:  # type: ignore[override]
        """The largest L2 norm of a bucket of ones."""
        return self.bucket**0.5 if self.norm == "l2" else 1.0

    def scale_count(self, count):
        """One per bucket."""
        return -(-count // self.bucket)

    def code_bytes(self, count):
        """The bytes of the codes of `count` values; each bucket is padded to whole bytes."""
        return count // self.bucket * self._packed(self.bucket) + self._packed(count % self.bucket)

    def encode(self, values: tf.Tensor, seed: Number, where: Where | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Encodes values.

        Args:
            values: [n] float32, finite, n < 2^31.
            seed: seed of the rounding, a number or a scalar int64 tensor; the rounding of an element depends only on
                it and on the element's position.
            where: ignored.

        Returns:
            Codes [code_bytes(n)] uint8 and scales [scale_count(n)] float32.

        Raises:
            tf.errors.InvalidArgumentError: if a value is not finite (the message says which), or a bucket's L2 norm is
                too large for float32.
        """
        return ops.library().hvd_quantize(
            values=values, seed=_integer(seed), bits=self.bits, bucket=self.bucket, norm=self.norm
        )

    def decode(self, codes, scales, count, where=None):
        return ops.library().hvd_dequantize(
            codes=codes, scales=scales, count=_integer(count), bits=self.bits, bucket=self.bucket
        )

    def encode_rows(self, values: tf.Tensor, seed: Number) -> tuple[tf.Tensor, tf.Tensor]:
        """Encodes the rows of a matrix, each by itself; only if `by_place` is False.

        Args:
            values: [rows, n] float32, finite.
            seed: that of the first row; each further row has the next one.

        Returns:
            Codes [rows, code_bytes(n)] uint8 and scales [rows, scale_count(n)] float32.
        """
        coded = [self.encode(row, seed + number) for number, row in enumerate(tf.unstack(values))]
        codes, scales = zip(*coded, strict=True)
        return tf.stack(codes), tf.stack(scales)

    def decode_rows(self, codes, scales, count):
        """Decodes all senders in one call, after padding every sender's last bucket."""
        senders = tf.shape(scales)[0]
        whole = tf.shape(scales)[1] * self._packed(self.bucket)
        padded = tf.pad(codes, [[0, 0], [0, whole - tf.shape(codes)[1]]])
        values = self.decode(tf.reshape(padded, [-1]), tf.reshape(scales, [-1]), tf.size(scales) * self.bucket)
        return tf.reshape(tf.reshape(values, [senders, -1])[:, :count], [-1])

    def _packed(self, count: int) -> int:
        return -(-count * self.bits // 8)


@dataclasses.dataclass(frozen=True)
class OneBit(Quantizer):
    """Sends the sign of each value and one magnitude for many: 1-bit quantization behind gradient dropping.

    The magnitude is the dropping threshold (Strom 2015), the mean of the column (Dryden et al. 2016) or the mean of all
    (Aji and Heafield 2017, 5.4). Zeros are sent as positive. Means are computed in float64 in the order of the values
    and rounded once; equal magnitudes stay exactly as they are.

    Bytes: 1/8 per value and 4 per scale. Only columns that have a value send a scale, in their order; receivers know
    from the indices which these are.

    Attributes:
        scale: "threshold", the smallest nonzero magnitude that is sent, for selection by one threshold (with a
            threshold per variable, the smallest would apply to all); "column", the mean magnitude of what is sent of
            each column of a variable, by its last dimension, where a vector is one column; or "global", the mean
            magnitude of all that is sent of a vector, or a shard of one.
    """

    disk_name = "OneBit"
    scale: str = "column"

    def __post_init__(self):
        if self.scale not in ("threshold", "column", "global"):
            raise ValueError(f"Expected a scale of 'threshold', 'column' or 'global', got {self.scale!r}.")

    @property
    def by_place(self) -> bool:  # type: ignore[override]
        """True if each column has a scale."""
        return self.scale == "column"

    def code_bytes(self, count):
        return (count + 7) // 8

    def scale_count(self, count):
        return max(count, 1) if self.by_place else 1

    def encode(self, values, seed, where=None):
        indices, columns = self._columns(where)
        magnitude = "least" if self.scale == "threshold" else "mean"
        return ops.library().hvd_quantize_one_bit(values=values, indices=indices, magnitude=magnitude, **columns)

    def decode(self, codes, scales, count, where=None):
        indices, columns = self._columns(where)
        return ops.library().hvd_dequantize_one_bit(
            codes=codes, scales=scales, indices=indices, count=_integer(count), **columns
        )

    def _columns(self, where: Where | None) -> tuple[tf.Tensor, dict[str, list[int]]]:
        """The indices and the matrices, empty unless each column has a scale."""
        if where is None or not self.by_place or not where.matrices:
            return tf.zeros([0], tf.int32), {}
        ends, starts, columns = (list(each) for each in zip(*where.matrices, strict=True))
        return where.indices, {"ends": ends, "starts": starts, "columns": columns}


@dataclasses.dataclass(frozen=True)
class TwoBits(Quantizer):
    """Sends the sign of each value and one of two magnitudes, which separates large movers from small changes.

    Aji and Heafield 2017 (5.4 and 6) call 2 bits "likely to be sufficient" and leave the method open. Here the
    magnitudes of each sign are split in two parts, and each value becomes the mean of its part. The split begins at the
    mean and is moved four times to the midpoint of the two means (Lloyd 1982), which of more than 2^14 values is done
    on every n-th; each move reduces the squared error, which stays in the residual. For exponentially distributed
    magnitudes, a split at the mean would leave 18% more.

    Bytes: 1/4 per value, and 16 for the scales of the small and the large ones, positive before negative.
    """

    disk_name = "TwoBits"

    def code_bytes(self, count):
        return (count + 3) // 4

    def scale_count(self, count):
        return 4

    def encode(self, values, seed, where=None):
        codes, scales = self.encode_rows(values[tf.newaxis], seed)
        return codes[0], scales[0]

    def encode_rows(self, values, seed):
        return ops.library().hvd_quantize_two_bits(values=values)

    def decode(self, codes, scales, count, where=None):
        return self.decode_rows(codes[tf.newaxis], scales[tf.newaxis], count)

    def decode_rows(self, codes, scales, count):
        values = ops.library().hvd_dequantize_two_bits(codes=codes, scales=scales, count=_integer(count))
        return tf.reshape(values, [-1])


def _integer(number: Number) -> tf.Tensor:
    return tf.cast(tf.convert_to_tensor(number, dtype_hint=tf.int64), tf.int64)
