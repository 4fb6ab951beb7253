"""How values are coded in fewer bits."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.ops import Number


@dataclasses.dataclass(frozen=True)
class QSGD:
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

    def buckets(self, count: int) -> int:
        """How many scales `count` values have."""
        return -(-count // self.bucket)

    def code_bytes(self, count: int) -> int:
        """The bytes of the codes of `count` values: each bucket is padded to whole bytes."""
        whole, rest = divmod(count, self.bucket)
        return whole * self._packed(self.bucket) + self._packed(rest)

    def encode(self, values: tf.Tensor, seed: Number) -> tuple[tf.Tensor, tf.Tensor]:
        """Codes values.

        Args:
            values: [n] float32, finite, n < 2^31.
            seed: of what is drawn, a number or a scalar int64 tensor; what is drawn for an element depends on it and on
                the element's position alone.

        Returns:
            Codes [code_bytes(n)] uint8 and scales [buckets(n)] float32.

        Raises:
            tf.errors.InvalidArgumentError: where a value is not finite (it says where), or a bucket's L2 norm is too
                large for float32.
        """
        return ops.library().hvd_quantize(
            values=values, seed=_integer(seed), bits=self.bits, bucket=self.bucket, norm=self.norm
        )

    def decode(self, codes: tf.Tensor, scales: tf.Tensor, count: Number) -> tf.Tensor:
        """Gives the values that codes stand for.

        Args:
            codes: as `encode` made them.
            scales: as `encode` made them.
            count: n, a number or a scalar tensor.

        Returns:
            [n] float32.

        Raises:
            tf.errors.InvalidArgumentError: where codes and scales are not those of n values, or a scale is negative or
                not finite.
        """
        return ops.library().hvd_dequantize(
            codes=codes, scales=scales, count=_integer(count), bits=self.bits, bucket=self.bucket
        )

    def _packed(self, count: int) -> int:
        return -(-count * self.bits // 8)


def _integer(number: Number) -> tf.Tensor:
    return tf.cast(tf.convert_to_tensor(number, dtype_hint=tf.int64), tf.int64)
