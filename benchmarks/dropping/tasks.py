"""The trainings of the study of gradient dropping, each by a simulated job: a perceptron on crops of photographs.

With the same seed all arms start from the same weights and see the same batches in the same order, with the same noise.
"""

from __future__ import annotations

import abc
import collections
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.convergence import data as convergence_data
from benchmarks.convergence.data import SIDE, Crops
from benchmarks.dropping.settings import Arm, ImageSettings
from benchmarks.dropping.simulation import Job, Work
from hvd_sparse.servers.pushing import unpacked

EVALUATED = 1024  # crops at a time
_crops = functools.lru_cache(2)(convergence_data.crops)


class Task(Work):
    """A task: the batches that clients take, and the evaluation of parameters.

    Attributes:
        settings: settings of the training.
        batches: see `Work`.
        samples: samples per batch.
    """

    settings: Any
    batches: int
    samples: float

    @abc.abstractmethod
    def begin(self, seed: int) -> Sequence[Any]:
        """Starts anew; returns Keras variables with the initial weights."""

    @abc.abstractmethod
    def optimizer(self) -> keras.optimizers.Optimizer:
        """The servers' optimizer; its learning rate comes with each push."""

    @abc.abstractmethod
    def watched(self, parameters: np.ndarray) -> tuple[float, float]:
        """The score in points, and the loss, on validation data at parameters [d] float32."""

    @abc.abstractmethod
    def final(self, parameters: np.ndarray) -> dict[str, float]:
        """The same on test data, as "final" and "loss"."""


def train(task: Task, arm: Arm, seed: int) -> dict[str, Any]:
    """Trains from the start.

    Returns:
        The results of `Task.final` for the servers' parameters, averaged over the last evaluations, and
        - last: score of the parameters of the last evaluation alone.
        - size: number of parameters.
        - samples: number of samples that all clients have seen.
        - copy: score of the first client's copy, which lacks what pulls have left out.
        - curve, losses: score and loss on validation data, at each evaluation.
        - times: times of the evaluations, in simulated seconds.
        - pushed, pulled: bytes of messages per step and client, without headers.
        - waited: share of time that clients wait for answers.
        - stale, stalest: mean and maximum staleness of gradients when they were applied, in updates.
        - weights: digest of the servers' parameters.

    Raises:
        ArithmeticError: if the loss is not finite.
    """
    settings, variables = task.settings, task.begin(seed)
    size = sum(math.prod(each.shape) for each in variables)
    pace = settings.timing.pace(size, arm.slowness, 2 * seed + arm.timing)
    job = Job(task, variables, task.optimizer(), arm.settings(), pace)
    looks, times = [], []
    kept: collections.deque[np.ndarray] = collections.deque(maxlen=settings.averaged)
    for look in range(settings.looks):
        job.run(task.batches * (look + 1) // settings.looks)
        kept.append(job.parameters())
        looks.append(task.watched(kept[-1]))
        times.append(job.now)
        if not math.isfinite(looks[-1][1]):
            raise ArithmeticError(f"The loss is {looks[-1][1]}: take a lower learning rate than {settings.rate}.")
    ages = job.staleness()
    return {
        **task.final(np.mean(list(kept), 0)),
        "last": task.final(kept[-1])["final"],
        "size": size,
        "samples": task.batches * task.samples,
        "copy": task.final(job.copy(0))["final"],
        "curve": [score for score, _ in looks],
        "losses": [loss for _, loss in looks],
        "times": times,
        "pushed": job.sent / task.batches,
        "pulled": job.received / task.batches,
        "waited": job.waited(),
        "stale": sum(age * count for age, count in ages.items()) / sum(ages.values()),
        "stalest": max(ages),
        "weights": hashlib.sha256(kept[-1].tobytes()).hexdigest()[:16],
    }


class ImageTask(Task):
    """Crops of photographs for a perceptron of three wide layers.

    Args:
        settings: the same for all arms.
        normalised: whether each layer has layer normalisation before its ReLU.
    """

    def __init__(self, settings: ImageSettings, normalised: bool):
        self.settings, self._normalised = settings, normalised
        self._data = _crops("left", settings.train, 0)
        held_out = _crops("right", settings.held_out, 0)
        noisy = convergence_data.noisy(held_out.images, settings.noise, np.random.default_rng(1))
        self._watched = Crops(noisy[: settings.watched], held_out.labels[: settings.watched])
        self._test = Crops(noisy[settings.watched :], held_out.labels[settings.watched :])
        self._classes = int(self._data.labels.max()) + 1
        self._steps = settings.train // settings.batch  # per epoch, of all clients
        self.batches, self.samples = settings.epochs * self._steps, float(settings.batch)
        self._seed, self._epoch, self._order = 0, -1, np.empty(0, np.int64)
        self._compile(self._make(0))

    def _make(self, seed: int) -> keras.Model:
        keras.utils.set_random_seed(seed)
        features = inputs = keras.Input((SIDE * SIDE,))
        for _ in range(3):
            features = keras.layers.Dense(self.settings.width)(features)
            if self._normalised:
                features = keras.layers.LayerNormalization()(features)
            features = keras.layers.ReLU()(features)
        return keras.Model(inputs, keras.layers.Dense(self._classes)(features))

    def _compile(self, model: keras.Model) -> None:
        shapes = [tuple(each.shape) for each in model.trainable_variables]

        def losses(vector: tf.Tensor, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            logits, _ = model.stateless_call(unpacked(vector, shapes), [], images)
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), logits

        def summed(vector: tf.Tensor, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            """The number of correct predictions, and the sum of losses."""
            each, logits = losses(vector, images, labels)
            told = tf.reduce_sum(tf.cast(tf.nn.in_top_k(labels, logits, 1), tf.float32))
            return tf.stack([told, tf.reduce_sum(each)])

        size = sum(math.prod(shape) for shape in shapes)
        given = [tf.TensorSpec([size]), tf.TensorSpec([None, SIDE * SIDE]), tf.TensorSpec([None], tf.int32)]
        mean = gradient_of(lambda *batch: tf.reduce_mean(losses(*batch)[0]))
        self._gradient = tf.function(mean, given, autograph=False)
        self._sums = tf.function(summed, given, autograph=False)

    def begin(self, seed):
        self._seed, self._epoch = seed, -1
        return self._make(seed).trainable_variables

    def optimizer(self):
        return keras.optimizers.Adagrad(initial_accumulator_value=0.0)

    def rate(self, step):
        return self.settings.rate

    def gradient(self, batch, parameters):
        epoch, place = divmod(batch, self._steps)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, 0, epoch]).permutation(len(self._data.labels))
        chosen = self._order[place * self.settings.batch :][: self.settings.batch]
        noise = np.random.default_rng([self._seed, 1, batch])
        images = convergence_data.noisy(self._data.images[chosen], self.settings.noise, noise)
        return self._gradient(parameters, images.reshape(len(chosen), -1), self._data.labels[chosen])

    def watched(self, parameters):
        return self._scores(parameters, self._watched)

    def final(self, parameters):
        score, loss = self._scores(parameters, self._test)
        return {"final": score, "loss": loss}

    def _scores(self, parameters: np.ndarray, crops: Crops) -> tuple[float, float]:
        sums = np.zeros(2)
        for begin in range(0, len(crops.labels), EVALUATED):
            images, labels = crops.images[begin : begin + EVALUATED], crops.labels[begin : begin + EVALUATED]
            sums += self._sums(parameters, images.reshape(len(labels), -1), labels).numpy()
        told, loss = sums / len(crops.labels)
        return 100.0 * float(told), float(loss)


def gradient_of(loss: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Makes a function for the gradient of a loss with respect to its first argument."""

    def gradient(vector: tf.Tensor, *others: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(vector)
            value = loss(vector, *others)
        return tape.gradient(value, vector)

    return gradient
