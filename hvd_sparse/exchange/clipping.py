"""Clips gradients by the optimizer's thresholds, before or after an exchange."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import keras
import tensorflow as tf

from hvd_sparse.exchange.plan import Gradient
from hvd_sparse.exchange.planned import PlannedExchange, tensors
from hvd_sparse.optimizers import slots

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


def exchanged(
    planned: PlannedExchange,
    gradients: Mapping[str, Gradient],
    apart: Mapping[str, Gradient],
    clip: Clip | None,
    returns_sum: bool,
) -> dict[str, Gradient]:
    """Exchanges gradients and clips: the means, if all of each gradient is sent, else each rank's own gradients.

    Args:
        planned: exchanges them.
        gradients: as for `PlannedExchange.exchange`.
        apart: likewise.
        clip: None does not clip.
        returns_sum: whether the exchange returns sums, for which the thresholds are then meant.
    """
    if clip is None:
        return planned.exchange(gradients, apart)
    if planned.aggregator.sends_all:
        return clipped(planned.exchange(gradients, apart), clip, 1.0)
    # So that the norm that passes a threshold is about the same.
    return planned.exchange(clipped(gradients, clip, planned.grid.world.size ** (-1.5 if returns_sum else -0.5)))


def clips(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether an optimizer clips gradients."""
    return any(getattr(optimizer, name) for name in slots.THRESHOLDS)


@contextlib.contextmanager
def scaled_thresholds(optimizer: keras.optimizers.Optimizer, factor: float) -> Iterator[None]:
    """Context in which Keras's clipping thresholds are multiplied by a factor, while the clipping is traced."""
    thresholds = {name: getattr(optimizer, name) for name in slots.THRESHOLDS}
    try:
        for name, threshold in thresholds.items():
            setattr(optimizer, name, threshold * factor if threshold else threshold)
        yield
    finally:
        for name, threshold in thresholds.items():
            setattr(optimizer, name, threshold)
