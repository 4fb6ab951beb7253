"""Accuracy on held-out images, exact over all ranks, and the averaging of statistics that it requires."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from examples.vision import augment
from examples.vision.samples import Samples
from hvd_sparse.keras.callbacks.base import DistributedCallback
from hvd_sparse.transport.communicator import Communicator

_SUMS = ("loss", "top1", "top5", "samples")


class Accuracy:
    """Top-1 and top-5 accuracy and mean cross entropy over all held-out samples, each counted once, on one rank.

    Attributes:
        samples: the held-out samples.
        size: height and width of the network's input.
        batch: images per rank and step.
    """

    def __init__(self, model: keras.Model):
        """Takes the model to evaluate."""
        self.samples: Samples | None = None
        self.size = self.batch = 0
        shapes = tf.TensorSpec([None, None, None, 3], tf.float32), tf.TensorSpec([None], tf.int64)
        self._step = tf.function(lambda images, labels: _sums(model, images, labels), input_signature=shapes)

    def __call__(self, _: keras.Model) -> dict[str, float]:
        """Evaluates; a collective, with the same result on every rank.

        Raises:
            RuntimeError: if the ranks together have not counted as many samples as there are.
        """
        assert self.samples is not None
        own = tf.zeros([len(_SUMS)], tf.float64)
        for images, labels in self.samples.once(self.batch):
            own += self._step(augment.held_out(images, self.size), labels)
        sums = dict(zip(_SUMS, hvd.topology.world().allreduce(own, "sum", "accuracy").numpy().tolist(), strict=True))
        count = sums.pop("samples")
        if count != len(self.samples):
            raise RuntimeError(f"Expected {len(self.samples)} held-out samples, but the ranks counted {count:.0f}.")
        return {name: total / count for name, total in sums.items()}


def _sums(model: keras.Model, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The sums over a batch: float64 [4], in the order of `_SUMS`."""
    logits = tf.cast(model(images, training=False), tf.float32)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    within = [tf.math.in_top_k(labels, logits, k) for k in (1, 5)]
    return tf.stack([tf.reduce_sum(tf.cast(each, tf.float64)) for each in (loss, *within, tf.ones_like(labels))])


class AverageStatistics(DistributedCallback):
    """Averages the moving statistics of batch normalisation over the ranks at the end of each epoch.

    Moving means and variances are not trained, so each rank has its own; evaluation needs the same on all ranks.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        average(self.model.non_trainable_weights, hvd.topology.world())


def average(variables: Sequence[Any], world: Communicator) -> None:
    """Gives all ranks the mean of their values of some Keras variables; a collective."""
    if world.size == 1 or not variables:
        return
    flat = tf.concat([tf.reshape(tf.cast(each.value, tf.float32), [-1]) for each in variables], 0)
    means = (world.allreduce(flat, "sum", "accuracy.average") / world.size).numpy()
    ends = np.cumsum([int(np.prod(each.shape)) for each in variables])
    for variable, part in zip(variables, np.split(means, ends[:-1]), strict=True):
        variable.assign(part.reshape(variable.shape))


class Beside:
    """The state that a checkpoint holds beside the model, for `datacache.DataCache.training`.

    This is the ranks' residuals (`hvd.checkpoint`) and everything else that differs between ranks: the states of
    random seeds and, between the ends of epochs, the moving means and variances.

    Args:
        model: a built model.
    """

    def __init__(self, model: keras.Model):
        saved_by_keras = {id(variable) for variable in model.weights}
        seeds = [variable for variable in model.variables if id(variable) not in saved_by_keras]
        self._own = [*seeds, *model.non_trainable_weights]

    def save(self, path: os.PathLike, of: Any) -> None:
        """Saves the state; a collective."""
        hvd.checkpoint.save(path, of, own_variables=self._own)

    def restore(self, path: os.PathLike, of: Any) -> bool | None:
        """Restores the state; a collective."""
        return hvd.checkpoint.restore(path, of, own_variables=self._own)
