"""The trainings of the convergence study: each gives a learner that trains from the start with a recipe and a seed.

With the same seed all recipes begin with the same weights and see the same samples in the same order, and the same
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
from benchmarks import convergence_data
from benchmarks.convergence_settings import ARMS, MODELS, ImageSettings, TranslationSettings
from examples import translation
from examples.models import small
from examples.training import arguments
from hvd_sparse.aggregators import Aggregator
from hvd_sparse.keras import ahead

EVALUATED = 256  # crops at a time
NORMS_EVERY = 1 << 30  # steps: nobody asks for gradients' norms here


class ImageLearner:
    """Trains one small network on crops of photographs.

    Args:
        make_model: from a number of classes.
        recipe: of the exchange, from the number of steps of a training.
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
        self._steps = settings.train // (settings.batch * size)  # an epoch
        self._model = make_model(self._classes)
        self._telemetry = hvd.Telemetry(norms_every=NORMS_EVERY)
        self._optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(_Rate(settings, self._steps), momentum=0.9),
            aggregator=recipe(settings.epochs * self._steps),
            telemetry=self._telemetry,
        )
        self._optimizer.build(self._model.trainable_variables)
        self._step = tf.function(self._update).get_concrete_function(
            tf.TensorSpec([settings.batch, convergence_data.SIDE, convergence_data.SIDE, 1]),
            tf.TensorSpec([settings.batch], tf.int32),
        )  # traced, not run: the exchange has its state, and nothing has changed it
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
            loss += self.settings.decay * tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        self._optimizer.apply(gradients, variables)
        return loss

    def _summed(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """How many were told in 1 and in 5, the sum of cross entropies, and how many there are."""
        logits = self._model(images, training=False)
        counts = [tf.reduce_sum(tf.cast(tf.nn.in_top_k(labels, logits, k), tf.float32)) for k in (1, 5)]
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        return tf.stack([*counts, loss, tf.cast(tf.size(labels), tf.float32)])

    def train(self, seed: int) -> dict[str, Any]:
        """Trains from the start.

        Returns:
            final: top-1 accuracy in points on the test's crops; top5 and loss: likewise; curve: top-1 of the watched
            ones after each epoch; error: what a learning rate is chosen by, the least is best: the loss of the watched
            ones in the end; across: bytes that this rank has sent to other nodes; weights: a digest of the trained
            ones, the same on all ranks.
        """
        self._reset(seed)
        settings, curve, sums = self.settings, [], None
        sent = self._telemetry.total_bytes_across
        order = np.random.default_rng([seed, 0])
        for epoch in range(settings.epochs):
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
        """Weights by the seed; the optimizer and the exchange as they were before the first step."""
        random.seed(seed)  # Keras draws the seeds of its initializers from it; all ranks begin alike
        fresh = self._make_model(self._classes)
        for variable, value in zip(self._model.variables, fresh.variables, strict=True):
            variable.assign(value)
        for variable in self._optimizer.variables:
            variable.assign(np.zeros(variable.shape, variable.dtype))
        for variable, value in self._state:
            variable.assign(value)

    def _share_statistics(self) -> None:
        """Batch normalisation's moving statistics, each rank's own while training, become the mean over ranks."""
        world = hvd.topology.world()
        for number, variable in enumerate(self._model.non_trainable_weights):
            variable.assign(world.allreduce(variable.value, "sum", f"convergence.statistics.{number}") / world.size)

    def _scores(self, own: convergence_data.Crops) -> tuple[float, float, float]:
        """Top-1 and top-5 in points, and the mean cross entropy, over the parts of all ranks."""
        sums = np.zeros(4)
        for begin in range(0, len(own.labels), EVALUATED):
            sums += self._sums(own.images[begin : begin + EVALUATED], own.labels[begin : begin + EVALUATED]).numpy()
        total = hvd.topology.world().allreduce(tf.constant(sums), "sum", "convergence.sums").numpy()
        top1, top5, loss = total[:3] / total[3]
        return 100.0 * float(top1), 100.0 * float(top5), float(loss)

    def _digest(self) -> str:
        """Of the trained weights; AssertionError where ranks differ."""
        weights = b"".join(np.ascontiguousarray(variable).tobytes() for variable in self._model.trainable_variables)
        digest = hashlib.sha256(weights).hexdigest()[:16]
        everyones = hvd.topology.world().gather_descriptions(digest, "convergence.weights")
        if len(set(everyones)) > 1:
            raise AssertionError(f"The ranks' weights differ at the end: {everyones}")
        return digest


class _Rate(keras.optimizers.schedules.LearningRateSchedule):
    """Linear to the highest rate, then to 0 as a cosine."""

    def __init__(self, settings: ImageSettings, steps: int):
        self._rate, self._warm_up = settings.rate, max(1.0, settings.warm_up * steps)
        self._total = float(settings.epochs * steps)

    def __call__(self, step: Any) -> Any:
        step = keras.ops.cast(step, "float32")
        done = (step - self._warm_up) / (self._total - self._warm_up)
        falling = 0.5 * (1.0 + keras.ops.cos(math.pi * keras.ops.clip(done, 0.0, 1.0)))
        return self._rate * keras.ops.minimum((step + 1.0) / self._warm_up, falling)


class TranslationTask:
    """What a model of examples/translation.py is to learn: the pairs of message catalogues that the machine has.

    Args:
        recipe: of the exchange, as the script takes it.
        density: of recipes that take one.
        settings: the same for all recipes.
    """

    def __init__(self, recipe: str, density: float, settings: TranslationSettings):
        words = [*settings.options, "--epochs", str(settings.epochs), "--recipe", recipe, "--density", str(density)]
        options = translation.parse(words)
        self._words = [*words, "--learning-rate", str(settings.rate * options.learning_rate)]
        self.task = translation.prepare(options)

    def options(self, seed: int) -> argparse.Namespace:
        """Of the script, for a training."""
        return translation.parse([*self._words, "--seed", str(seed)])

    @staticmethod
    def scores(outcome: translation.Outcome) -> dict[str, Any]:
        """What is kept of a training; final: BLEU of the test's translations; top5 and loss: of its pieces, told the
        right beginning; curve: BLEU of validation; error: the loss of validation; weights: a digest."""
        return {
            "final": outcome.test["bleu"],
            "top5": 100.0 * outcome.test["top5"],
            "loss": outcome.test["loss"],
            "curve": [line["bleu"] for line in outcome.lines],
            "error": outcome.lines[-1]["loss"],
            "weights": outcome.weights[:16],
        }


class TranslationLearner:
    """Trains a translation on real ranks; every run makes its graph anew: there `train` is the whole of a script.

    Args:
        translated: what is learnt, with which recipe.
    """

    def __init__(self, translated: TranslationTask):
        self._translated = translated

    def train(self, seed: int) -> dict[str, Any]:
        """Trains from the start; see `TranslationTask.scores`, and across: bytes that this rank has sent to others."""
        keras.utils.clear_session()
        telemetry = hvd.Telemetry(norms_every=NORMS_EVERY)
        outcome = translation.train(self._translated.options(seed), self._translated.task, telemetry=telemetry)
        return {**TranslationTask.scores(outcome), "across": telemetry.total_bytes_across}


NETWORKS = {"small_resnet": small.small_resnet, "small_vgg": small.small_vgg}


def make(model: str, arm: str, density: float, given: dict[str, Any]) -> ImageLearner | TranslationLearner:
    """A learner for a model of the study, by names; `given` are the fields of its settings."""
    settings = type(MODELS[model])(**given)
    if isinstance(settings, TranslationSettings):
        return TranslationLearner(TranslationTask(ARMS[arm].recipe, density, settings))

    def recipe(steps: int) -> Aggregator:
        return arguments.recipe_of(ARMS[arm].recipe, density, steps=steps)

    return ImageLearner(NETWORKS[model], recipe, settings)
