"""The layer that passes only the largest activations of each sample (DCT-MP)."""

from __future__ import annotations

import fractions
import math
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.pipeline import rows


def kept_of(width: int, sparsity: float) -> int:
    """Returns how many elements of a row are passed.

    Args:
        width: d, the number of elements of a row, at least 1.
        sparsity: the share that is not passed, in [0, 1), taken as the decimal as which it is written: 29% of 100 is
            29, though 100 * 0.29 is a little less in floating point.

    Returns:
        d - floor(d * sparsity), at least 1.
    """
    return max(1, width - math.floor(width * fractions.Fraction(str(float(sparsity)))))


@keras.saving.register_keras_serializable(package="hvd_sparse")
class Threshold(keras.layers.Layer):
    """Passes the elements of largest magnitude of each sample's row, forward and backward (DCT 2.2, Algorithm 2).

    Of the d elements in a row, exactly k = d - floor(d * sparsity) are passed, at least one, with unchanged bits. Of
    equal magnitudes those at lower positions are passed; a NaN counts as larger than all numbers. The others are 0, and
    so is their gradient: the mask is a constant of the backward pass. Rows are the last axis.

    XLA cannot compile its operation, so a train step with such a layer is not compiled: `jit_compile=False`.

    Args:
        sparsity: the share of a row that is not passed, in [0, 1); 0 passes all.
        at_inference: whether elements are dropped at inference too, as in training; otherwise all are passed there.
        **kwargs: those of `keras.layers.Layer`.

    Raises:
        ValueError: if sparsity is outside [0, 1), or an input has no rows of a known, positive length.

    Shapes:
        [batch, ..., d], float32, float16 or bfloat16, to the same.
    """

    def __init__(self, sparsity: float, at_inference: bool = True, **kwargs: Any):
        if not 0 <= sparsity < 1:
            raise ValueError(
                f"Expected a sparsity in [0, 1), the share of elements that do not pass, got {sparsity!r}: 0.9 lets "
                "one in ten pass."
            )
        super().__init__(**kwargs)
        self.sparsity = float(sparsity)
        self.at_inference = bool(at_inference)
        self.supports_masking = True
        self.supports_jit = False

    def build(self, input_shape):
        if len(input_shape) < 2 or not input_shape[-1]:
            raise ValueError(
                f"Expected an input [batch, ..., d] with a known d of at least 1, got shape {tuple(input_shape)}: "
                "reshape it so that each sample has rows."
            )
        super().build(input_shape)

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs, training=None):
        width = inputs.shape[-1]
        kept = kept_of(width, self.sparsity)
        if kept == width or not (training or self.at_inference):
            return inputs
        return rows.threshold_rows(inputs, kept)[0]

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "sparsity": self.sparsity, "at_inference": self.at_inference}
