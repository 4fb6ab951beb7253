"""The trainings of the convergence study: learners that train from the start with a recipe and a seed.

With the same seed all recipes start from the same weights and see the same samples in the same order, with the same
noise. All settings are the same for all recipes.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
import lars
from benchmarks.convergence import data as convergence_data
from benchmarks.convergence.settings import ARMS, MODELS, ImageSettings, TranslationSettings
from examples import translation
from examples.models import small
from examples.training import arguments
from hvd_sparse.aggregators import Aggregator
from hvd_sparse.optimizers import ahead

EVALUATED = 256  # crops at a time
NORMS_EVERY = 1 << 30  # steps: the norms of gradients are not used here


class ImageLearner:
    """Trains one small network on crops of photographs.

    Args:
        make_model: makes the model for a number of classes.
        recipe: recipe of the exchange, from the number of steps of a training.
        settings: the same for all recipes.
    """

    def __init__(
        self, make_model: Callable[[int], keras.Model], recipe: Callable[[int], Aggregator], settings: ImageSettings
    ):
        self.settings = settings
        self._make_model = make_model
        self._data = convergence_data.crops("left", settings.train, 0)
        held_out = convergence_data.crops("right", settings.held_out, 0)
        noise = np.random.default_rng(1)
        held_out = held_out._replace(images=convergence_data.noisy(held_out.images, settings.noise, noise))
        rank, size = hvd.rank(), hvd.size()
        self._watched = convergence_data.Crops(*(each[: settings.watched] for each in held_out)).part(rank, size)
        self._test = convergence_data.Crops(*(each[settings.watched :] for each in held_out)).part(rank, size)
        self._classes = int(self._data.labels.max()) + 1
        self._steps = settings.train // (settings.batch * size)  # per epoch
        self._model = make_model(self._classes)
        self._telemetry = hvd.Telemetry(norms_every=NORMS_EVERY)
        self._optimizer = hvd.DistributedOptimizer(
            _optimizer(settings, _Rate(settings, self._steps)),
            aggregator=recipe(settings.epochs * self._steps),
            telemetry=self._telemetry,
        )
        self._optimizer.build(self._model.trainable_variables)
        self._step = tf.function(self._update).get_concrete_function(
            tf.TensorSpec([settings.batch, convergence_data.SIDE, convergence_data.SIDE, 1]),
            tf.TensorSpec([settings.batch], tf.int32),
        )  # traced, not run: this creates the state of the exchange without changing it
        self._sums = tf.function(self._summed)
        kept = [variable for state in self._optimizer.exchange.states for variable in state.variables]
        kept += ahead.offsets(self._optimizer)
        self._state = [(variable, variable.numpy()) for variable in kept]

    def _update(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        variables = self._model.trainable_variables
        with hvd.looking_ahead(self._optimizer), tf.GradientTape() as tape:
            logits = self._model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            kernels = [variable.value for variable in variables if len(variable.shape) > 1]
            if not self.settings.trust:
                loss += self.settings.decay * tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        self._optimizer.apply(gradients, variables)
        return loss

    def _summed(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Hits in the top 1 and the top 5, the sum of cross entropies, and the number of crops."""
        logits = self._model(images, training=False)
        counts = [tf.reduce_sum(tf.cast(tf.nn.in_top_k(labels, logits, k), tf.float32)) for k in (1, 5)]
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        return tf.stack([*counts, loss, tf.cast(tf.size(labels), tf.float32)])

    def train(self, seed: int) -> dict[str, Any]:
        """Trains from the start.

        Returns:
            final: top-1 accuracy in points on the test crops; top5 and loss: on the test crops as well; curve: top-1 on
                the watched crops after each epoch; error: the final loss on the watched crops, by which learning rates
                are chosen; across: bytes that this rank has sent to other nodes; weights: a digest of the trained
                weights, the same on all ranks.
        """
        self._reset(seed)
        settings, curve, sums = self.settings, [], None
        sent = self._telemetry.total_bytes_across
        order = np.random.default_rng([seed, 0])
        for epoch in range(settings.epochs):
            self._optimizer.set_epoch(epoch)
            self._train_epoch(order.permutation(settings.train), [seed, 1, epoch])
            self._share_statistics()
            curve.append(self._scores(self._watched)[0])
            if epoch >= settings.epochs - settings.averaged:
                sums = [np.asarray(v) + (0 if sums is None else sums[i]) for i, v in enumerate(self._model.weights)]
        if sums is not None:
            for variable, total in zip(self._model.weights, sums, strict=True):
                variable.assign(total / settings.averaged)
        top1, top5, loss = self._scores(self._test)
        return {
            "final": top1,
            "top5": top5,
            "loss": loss,
            "curve": curve,
            "error": self._scores(self._watched)[2],
            "across": self._telemetry.total_bytes_across - sent,
            "weights": self._digest(),
        }

    def _train_epoch(self, order: np.ndarray, seed: list[int]) -> None:
        batch, rank, size = self.settings.batch, hvd.rank(), hvd.size()
        noise = np.random.default_rng([*seed, rank])
        losses = []
        for step in range(self._steps):
            chosen = order[(step * size + rank) * batch :][:batch]
            images = convergence_data.noisy(self._data.images[chosen], self.settings.noise, noise)
            losses.append(self._step(tf.constant(images), tf.constant(self._data.labels[chosen])))
        loss = float(np.mean(losses))
        if not math.isfinite(loss):
            raise ArithmeticError(f"The loss is {loss}: take a lower learning rate than {self.settings.rate}.")

    def _reset(self, seed: int) -> None:
        """Sets weights by the seed, and resets the optimizer and the exchange to their state before the first step."""
        random.seed(seed)  # Keras draws the seeds of initializers from it, so that ranks start equal
        fresh = self._make_model(self._classes)
        for variable, value in zip(self._model.variables, fresh.variables, strict=True):
            variable.assign(value)
        for variable in self._optimizer.variables:
            variable.assign(np.zeros(variable.shape, variable.dtype))
        for variable, value in self._state:
            variable.assign(value)

    def _share_statistics(self) -> None:
        """Averages over ranks the moving statistics of batch normalisation, which are each rank's own in training."""
        world = hvd.topology.world()
        for number, variable in enumerate(self._model.non_trainable_weights):
            variable.assign(world.allreduce(variable.value, "sum", f"convergence.statistics.{number}") / world.size)

    def _scores(self, own: convergence_data.Crops) -> tuple[float, float, float]:
        """Top-1 and top-5 accuracy in points, and the mean cross entropy, over the parts of all ranks."""
        sums = np.zeros(4)
        for begin in range(0, len(own.labels), EVALUATED):
            sums += self._sums(own.images[begin : begin + EVALUATED], own.labels[begin : begin + EVALUATED]).numpy()
        total = hvd.topology.world().allreduce(tf.constant(sums), "sum", "convergence.sums").numpy()
        top1, top5, loss = total[:3] / total[3]
        return 100.0 * float(top1), 100.0 * float(top5), float(loss)

    def _digest(self) -> str:
        """A digest of the trained weights; AssertionError if ranks differ."""
        weights = b"".join(np.ascontiguousarray(variable).tobytes() for variable in self._model.trainable_variables)
        digest = hashlib.sha256(weights).hexdigest()[:16]
        everyones = hvd.topology.world().gather_descriptions(digest, "convergence.weights")
        if len(set(everyones)) > 1:
            raise AssertionError(f"The ranks' weights differ at the end: {everyones}")
        return digest


def _optimizer(settings: ImageSettings, rate: Any) -> keras.optimizers.Optimizer:
    if settings.trust:
        return lars.LARS(rate, 0.9, settings.decay, trust_coefficient=settings.trust, parallel=False)
    return keras.optimizers.SGD(rate, momentum=0.9)


class _Rate(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up to the highest rate, then a cosine to 0."""

    def __init__(self, settings: ImageSettings, steps: int):
        self._rate, self._warm_up = settings.rate, max(1.0, settings.warm_up * steps)
        self._total = float(settings.epochs * steps)

    def __call__(self, step: Any) -> Any:
        step = keras.ops.cast(step, "float32")
        done = (step - self._warm_up) / (self._total - self._warm_up)
        falling = 0.5 * (1.0 + keras.ops.cos(math.pi * keras.ops.clip(done, 0.0, 1.0)))
        return self._rate * keras.ops.minimum((step + 1.0) / self._warm_up, falling)


class TranslationTask:
    """The task of a model of examples/translation.py: the pairs of the machine's message catalogues.

    Args:
        recipe: recipe of the exchange, as for the script.
        density: density, for recipes that have one.
        settings: the same for all recipes.
    """

    def __init__(self, recipe: str, density: float, settings: TranslationSettings):
        words = [*settings.options, "--epochs", str(settings.epochs), "--recipe", recipe, "--density", str(density)]
        options = translation.parse(words)
        self._words = [*words, "--learning-rate", str(settings.rate * options.learning_rate)]
        self.task = translation.prepare(options)

    def options(self, seed: int) -> argparse.Namespace:
        """The script's options for a training."""
        return translation.parse([*self._words, "--seed", str(seed)])

    @staticmethod
    def scores(outcome: translation.Outcome) -> dict[str, Any]:
        """The stored results of a training; final: BLEU on test data; top5 and loss: with teacher forcing on test data;
        curve: BLEU on validation data; error: validation loss; weights: a digest."""
        return {
            "final": outcome.test["bleu"],
            "top5": 100.0 * outcome.test["top5"],
            "loss": outcome.test["loss"],
            "curve": [line["bleu"] for line in outcome.lines],
            "error": outcome.lines[-1]["loss"],
            "weights": outcome.weights[:16],
        }


class TranslationLearner:
    """Trains a translation model on real ranks; every run builds its graph anew, as `train` runs a whole script.

    Args:
        translated: the task and the recipe.
    """

    def __init__(self, translated: TranslationTask):
        self._translated = translated

    def train(self, seed: int) -> dict[str, Any]:
        """Trains; returns `TranslationTask.scores`, and across: bytes that this rank has sent to others."""
        keras.utils.clear_session()
        telemetry = hvd.Telemetry(norms_every=NORMS_EVERY)
        outcome = translation.train(self._translated.options(seed), self._translated.task, telemetry=telemetry)
        return {**TranslationTask.scores(outcome), "across": telemetry.total_bytes_across}


NETWORKS = {
    "small_resnet": small.small_resnet,
    "small_vgg": small.small_vgg,
    "lars_resnet": small.small_resnet,
}


def make(model: str, arm: str, density: float, given: dict[str, Any]) -> ImageLearner | TranslationLearner:
    """Makes a learner for a model and an arm of the study; `given` are the fields of its settings."""
    settings = type(MODELS[model])(**given)
    if isinstance(settings, TranslationSettings):
        return TranslationLearner(TranslationTask(ARMS[arm].recipe, density, settings))

    def recipe(steps: int) -> Aggregator:
        return arguments.recipe_of(ARMS[arm].recipe, density, steps=steps)

    return ImageLearner(NETWORKS[model], recipe, settings)
