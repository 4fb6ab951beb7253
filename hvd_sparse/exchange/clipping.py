"""Clips gradients by the optimizer's thresholds, before or after an exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf

from hvd_sparse.exchange.plan import Gradient
from hvd_sparse.exchange.planned import tensors

Clip = Callable[[list[tf.Tensor], float], list[tf.Tensor]]


def clipped(gradients: Mapping[str, Gradient], clip: Clip, factor: float) -> dict[str, Gradient]:
    """The gradients clipped at `factor` times the thresholds; {} if there are none."""
    if not gradients:
        return {}
    # The indices of slices are unique here, so the norm of their values is that of the gradient.
    clipped = clip(tensors(gradients.values()), factor)
    return {
        name: tf.IndexedSlices(value, gradient.indices, gradient.dense_shape)
        if isinstance(gradient, tf.IndexedSlices)
        else value
        for (name, gradient), value in zip(gradients.items(), clipped, strict=True)
    }
