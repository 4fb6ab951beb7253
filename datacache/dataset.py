"""The way into tf.data: whole batches, handed over without a copy."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from datacache.batches import Batches

_AT_A_TIME = 2  # batches that are gathered at the same time
_READY = 2  # batches that wait for the training step


def make(batches: Batches) -> tf.data.Dataset:
    """Makes a dataset of (samples, labels) of a rank's batches, in order.

    Args:
        batches: what is read; the dataset may be iterated several times.

    Returns:
        Samples [b, ...] and labels int64 [b]; b is known to the graph where all batches are of one size.
    """
    layout, schedule = batches.layout, batches.schedule
    count = schedule.batch_size if schedule.has_equal_batches else None

    def read(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return batches.read(int(step))

    def batch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        samples, labels = tf.numpy_function(read, [step], [tf.as_dtype(layout.dtype), tf.int64], stateful=False)
        samples.set_shape([count, *layout.shape])
        labels.set_shape([count])
        return samples, labels

    steps = tf.data.Dataset.range(len(batches))
    return steps.map(batch, num_parallel_calls=_AT_A_TIME, deterministic=True).prefetch(_READY)
