"""How values are coded in fewer bits."""

from __future__ import annotations

import abc
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.ops import Number
from hvd_sparse.spec import Matrix


class Where(NamedTuple):
    """Where values lie in a vector.

    Attributes:
        indices: [n] int32, of the values in the vector.
        matrices: what the vector consists of, see `Spec.matrices`; none where all of it is one column.
    """

    indices: tf.Tensor
    matrices: tuple[Matrix, ...] = ()


class Quantizer(abc.ABC):
    """The role: values go in, codes of a few bits each and a few scales come out, and from these values again.

    Whoever decodes has the codes and the scales, and knows where the values lie; he needs nothing else.

    Attributes:
        by_place: whether how many scales there are depends on where values lie; `encode` and `decode` are then told.
        headroom: values times it have to be finite, so that scales are.
    """

    by_place = False
    headroom = 1.0

    @abc.abstractmethod
    def code_bytes(self, count: int) -> int:
        """The bytes of the codes of `count` values."""

    @abc.abstractmethod
    def scale_count(self, count: int) -> int:
        """How many scales `count` values have; where that depends on where they lie, at most."""

    @abc.abstractmethod
    def encode(self, values: tf.Tensor, seed: Number, where: Where | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Codes values.

        Args:
            values: [n] float32, finite, n < 2^31.
            seed: of what is drawn, if anything is: a number or a scalar int64 tensor.
            where: where they lie; None where it is not known, and they are all of one column.

        Returns:
            Codes [code_bytes(n)] uint8 and scales [scale_count(n)] float32.

        Raises:
            tf.errors.InvalidArgumentError: where a value is not finite (it says where), or an index is outside of all
                matrices.
        """

    @abc.abstractmethod
    def decode(self, codes: tf.Tensor, scales: tf.Tensor, count: Number, where: Where | None = None) -> tf.Tensor:
        """Gives the values that codes stand for.

        Args:
            codes: as `encode` made them.
            scales: as `encode` made them.
            count: n, a number or a scalar tensor.
            where: as it was told to `encode`.

        Returns:
            [n] float32.

        Raises:
            tf.errors.InvalidArgumentError: where codes and scales are not those of n values, a scale is negative or not
                finite, or an index is outside of all matrices.
        """

    def decode_rows(self, codes: tf.Tensor, scales: tf.Tensor, count: Number) -> tf.Tensor:
        """Gives the values of several senders of equally many, of quantizers that do not go by place.

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
class QSGD(Quantizer):
    """Values rounded at random to a few levels of their bucket's scale, so that the expectation is the value itself.

    Each bucket of consecutive values has one scale; with s = 2^(bits - 1) - 1 levels, |x| / scale * s is rounded up
    with the probability of its fraction f, so that the variance is (scale / s)^2 f (1 - f) (SparCML 6, after QSGD,
    which takes L2 norms). Zeros, and buckets whose scale is below s * 2^-104 (5e-32 s), decode to zeros.

    Attributes:
        bits: of a value with its sign, 2, 4 or 8: 1, 7 or 127 levels.
        bucket: values with one scale, at least 1; the last bucket may be shorter.
        norm: what a scale is: "max", the largest magnitude, or "l2", the root of the sum of squares, with which most
            values of a long bucket become 0 at few bits.
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
        """One of each bucket."""
        return -(-count // self.bucket)

    def code_bytes(self, count):
        """Each bucket is padded to whole bytes."""
        return count // self.bucket * self._packed(self.bucket) + self._packed(count % self.bucket)

    def encode(self, values: tf.Tensor, seed: Number, where: Where | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Codes values.

        Args:
            values: [n] float32, finite, n < 2^31.
            seed: of what is drawn, a number or a scalar int64 tensor; what is drawn for an element depends on it and on
                the element's position alone.
            where: of no matter.

        Returns:
            Codes [code_bytes(n)] uint8 and scales [scale_count(n)] float32.

        Raises:
            tf.errors.InvalidArgumentError: where a value is not finite (it says where), or a bucket's L2 norm is too
                large for float32.
        """
        return ops.library().hvd_quantize(
            values=values, seed=_integer(seed), bits=self.bits, bucket=self.bucket, norm=self.norm
        )

    def decode(self, codes, scales, count, where=None):
        return ops.library().hvd_dequantize(
            codes=codes, scales=scales, count=_integer(count), bits=self.bits, bucket=self.bucket
        )

    def decode_rows(self, codes, scales, count):
        """By one call, with all buckets made whole."""
        senders = tf.shape(scales)[0]
        whole = tf.shape(scales)[1] * self._packed(self.bucket)
        padded = tf.pad(codes, [[0, 0], [0, whole - tf.shape(codes)[1]]])
        values = self.decode(tf.reshape(padded, [-1]), tf.reshape(scales, [-1]), tf.size(scales) * self.bucket)
        return tf.reshape(tf.reshape(values, [senders, -1])[:, :count], [-1])

    def _packed(self, count: int) -> int:
        return -(-count * self.bits // 8)


@dataclasses.dataclass(frozen=True)
class OneBit(Quantizer):
    """The sign of each value, and one magnitude for many: 1-bit quantization behind gradient dropping.

    (Aji and Heafield 2017, 5.4: to the dropping threshold as Strom 2015 does, to the average of the column as Dryden et
    al. 2016, or to that of all.) Zeros are sent as positive. Means are taken in float64 in the order of the values and
    rounded once; equal magnitudes are kept as they are.

    Bytes: 1/8 a value and 4 a scale. The scales of columns travel only for those columns that have a value, in their
    order, as receivers know which these are by the indices.

    Attributes:
        scale: "threshold", the least magnitude that is sent and is not zero, for selections by one threshold (where
            each variable has its own, the smallest of these would be for all); "column", the mean magnitude of what is
            sent of the column of a variable, by its last dimension, where a vector is one column; or "global", of all
            that is sent of a vector, or a shard of one.
    """

    disk_name = "OneBit"
    scale: str = "column"

    def __post_init__(self):
        if self.scale not in ("threshold", "column", "global"):
            raise ValueError(f"Expected a scale of 'threshold', 'column' or 'global', got {self.scale!r}.")

    @property
    def by_place(self) -> bool:  # type: ignore[override]
        """Where each column has a scale."""
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
        """The indices and the matrices, where these matter."""
        if where is None or not self.by_place or not where.matrices:
            return tf.zeros([0], tf.int32), {}
        ends, starts, columns = (list(each) for each in zip(*where.matrices, strict=True))
        return where.indices, {"ends": ends, "starts": starts, "columns": columns}


@dataclasses.dataclass(frozen=True)
class TwoBits(Quantizer):
    """The sign of each value and one of two magnitudes for it: large movers are told from small changes.

    (Aji and Heafield 2017, 5.4 and 6, where 2 bits are "likely to be sufficient"; how is left open.) The magnitudes of
    each sign are split in two parts, and each value becomes the mean of its part. The split begins at the mean and is
    put midway between the two means, four times (Lloyd 1982): with each the squared error becomes less, and it is this
    that stays in the residual. Of exponentially distributed magnitudes, the split at the mean leaves 18% more.

    Bytes: 1/4 a value, and 16 for the scales: of the small and of the large ones, positive before negative.
    """

    disk_name = "TwoBits"

    def code_bytes(self, count):
        return (count + 3) // 4

    def scale_count(self, count):
        return 4

    def encode(self, values, seed, where=None):
        return ops.library().hvd_quantize_two_bits(values=values)

    def decode(self, codes, scales, count, where=None):
        return ops.library().hvd_dequantize_two_bits(codes=codes, scales=scales, count=_integer(count))


def _integer(number: Number) -> tf.Tensor:
    return tf.cast(tf.convert_to_tensor(number, dtype_hint=tf.int64), tf.int64)
