"""The translation task of the study of gradient dropping: the LSTM of examples/translation.py, in a simulated job."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from benchmarks.convergence.settings import TranslationSettings
from benchmarks.convergence.tasks import TranslationTask
from benchmarks.dropping.settings import CLIENTS, SentenceSettings
from benchmarks.dropping.tasks import Task, gradient_of
from examples import translation
from examples.text.batches import PAD
from examples.training import arguments, rates
from hvd_sparse.servers.pushing import unpacked


class SentenceTask(Task):
    """Message catalogues for an LSTM with attention; clients take the script's batches of one rank.

    Args:
        settings: the same for all arms.
    """

    def __init__(self, settings: SentenceSettings):
        self.settings = settings
        given = TranslationSettings(settings.options, settings.epochs, settings.rate)
        self._translated = TranslationTask("dense", 1.0, given)
        self._take(0)

    def _take(self, seed: int) -> None:
        self._options = self._translated.options(seed)
        self._own = translation.training_batches(self._options, self._translated.task, 0, 1)
        self._epoch, self._batches = -1, []
        self.batches = self._options.epochs * self._own.steps
        self.samples = len(self._translated.task.train) / self._own.steps

    def begin(self, seed):
        keras.utils.clear_session()
        self._take(seed)
        steps = -(-self._own.steps // CLIENTS)  # as many as in a synchronous job
        self._schedule = rates.make(self._options, [rates.Leg(self._options.epochs, steps)])
        keras.utils.set_random_seed(arguments.seed_of(self._options, 0))
        self._model = translation.make_model(self._options, self._translated.task.vocabulary)
        self._model.compile("sgd", translation.smoothed_crossentropy(self._options))
        self._validation, self._test = translation.evaluations(self._options, self._translated.task, self._model)
        self._shapes = [tuple(each.shape) for each in self._model.trainable_variables]
        self._gradient = self._compiled()
        return [keras.Variable(each.numpy()) for each in self._model.trainable_variables]

    def _compiled(self) -> tf.types.experimental.PolymorphicFunction:
        model, shapes = self._model, self._shapes
        others = [each.value for each in model.non_trainable_variables]

        def loss(vector, source, target, labels, weights):
            told, _ = model.stateless_call(unpacked(vector, shapes), others, (source, target), training=True)
            return model.compute_loss((source, target), labels, told, weights)

        tokens, weights = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None], tf.float32)
        return tf.function(gradient_of(loss), [tf.TensorSpec([None]), *[tokens] * 3, weights], autograph=False)

    def optimizer(self):
        return keras.optimizers.Adam(beta_2=0.98, epsilon=1e-9)  # the script's

    def rate(self, step):
        return float(self._schedule(step))

    def gradient(self, batch, parameters):
        epoch, place = divmod(batch, self._own.steps)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, list(self._own.epoch(epoch))
        taken = self._batches[place]
        return self._gradient(parameters, *taken, (taken.labels != PAD).astype(np.float32))

    def watched(self, parameters):
        self._assign(parameters)
        told = self._validation()
        return told["bleu"], told["loss"]

    def final(self, parameters):
        self._assign(parameters)
        told = self._test()
        return {"final": told["bleu"], "loss": told["loss"]}

    def _assign(self, parameters: np.ndarray) -> None:
        values = unpacked(parameters, self._shapes)
        for variable, value in zip(self._model.trainable_variables, values, strict=True):
            variable.assign(value)
