"""Clipping by the norm of all gradients, of which each stage only knows its own part."""

from __future__ import annotations

import math

import keras
import tensorflow as tf

from hvd_sparse.optimizers import slots
from hvd_sparse.pipeline.packing import Packed, each_value

UNKNOWN = -1.0
"""The sum of squares of a stage that does not clip, and so has not computed it."""


def global_clipnorm(optimizer: keras.optimizers.Optimizer) -> float | None:
    """The largest norm of all gradients that an optimizer allows; None if it has none."""
    return getattr(slots.without_loss_scaling(optimizer), "global_clipnorm", None)


def check(optimizer: keras.optimizers.Optimizer, trainers: int) -> None:
    """Raises an error if stages cannot know the norm in time.

    Raises:
        ValueError: if the norm would be that of means over trainers, or over steps.
    """
    if global_clipnorm(optimizer) is None:
        return
    if trainers > 1 or getattr(slots.without_loss_scaling(optimizer), "gradient_accumulation_steps", None):
        means = "trainers" if trainers > 1 else "the steps of gradient_accumulation_steps"
        raise ValueError(
            f"Stages exchange the norm of one step's gradients, not of their mean over {means}: pass clipnorm "
            "or clipvalue, not global_clipnorm."
        )


def squares(gradients: Packed, optimizer: keras.optimizers.Optimizer) -> float:
    """The sum of the squares of gradients, without the loss scale; `UNKNOWN` if nothing is clipped by it.

    Rows that occur twice are counted separately, as in Keras; 0 if it is not finite.
    """
    if global_clipnorm(optimizer) is None:
        return UNKNOWN
    total = sum(float(tf.reduce_sum(tf.square(tf.cast(values, tf.float64)))) for values, *_ in gradients.values())
    total /= float(optimizer.scale_loss(tf.ones([]))) ** 2
    return total if math.isfinite(total) else 0.0


def clipped(gradients: Packed, total: float, optimizer: keras.optimizers.Optimizer) -> Packed:
    """One stage's gradients, clipped, given the sum of squares of all stages.

    The optimizer then clips by the norm of these gradients alone, which is no larger: that changes nothing.
    """
    most = global_clipnorm(optimizer)
    if most is None or math.sqrt(total) <= most:
        return gradients
    factor = most / math.sqrt(total)
    return each_value(gradients, lambda values: values * factor)
