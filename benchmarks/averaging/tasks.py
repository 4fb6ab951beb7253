"""The trainings of the study of model averaging: batches, gradients by one compiled function, and evaluations.

With the same seed all arms start from the same weights and see the same batches, with the same noise.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from benchmarks.averaging import data as averaging_data
from benchmarks.averaging.settings import ImageSettings, MessageSettings, Settings
from benchmarks.convergence import data as convergence_data
from benchmarks.convergence.data import SIDE, Crops
from examples.models import small
from hvd_sparse.averaging.flat import flat
from hvd_sparse.servers.pushing import unpacked

EVALUATED = 1024  # samples at a time


class Samples(NamedTuple):
    """Inputs of a model [count, ...] and labels [count] int32."""

    inputs: np.ndarray
    labels: np.ndarray


class State(NamedTuple):
    """State of a model: weights [d] float32, and statistics of batch normalisation [s] float32, each end to end."""

    weights: np.ndarray
    statistics: np.ndarray


class Score(NamedTuple):
    """Result of an evaluation: accuracy in points, and mean cross entropy in nats."""

    points: float
    loss: float


class Task(abc.ABC):
    """A task with its model.

    Args:
        settings: the same for all arms.
        train: number of training samples.
        inputs: shape and dtype of a sample.

    Attributes:
        validation: validation samples.
        test: test samples.
        fitted: training samples, as used in evaluations.
    """

    validation: Samples
    test: Samples
    fitted: Samples

    def __init__(self, settings: Settings, train: int, inputs: tf.TensorSpec):
        self.schedule, self._train = settings.schedule, train
        keras.utils.clear_session()
        self._model = self._make()
        self._shapes = [tuple(each.shape) for each in self._model.trainable_variables]
        self._held = [each.numpy() for each in self._model.non_trainable_variables]
        state = [tf.TensorSpec(each.shape) for each in self.begin(0)]
        batch = [tf.TensorSpec([None, *inputs.shape], inputs.dtype), tf.TensorSpec([None], tf.int32)]
        self.gradient, self._sums = (
            tf.function(function, autograph=False).get_concrete_function(*state, *batch)
            for function in (self._gradient, self._summed)
        )

    @abc.abstractmethod
    def _make(self) -> keras.Model:
        """Makes the model, with logits at the end."""

    @abc.abstractmethod
    def _samples(self, chosen: np.ndarray, noise: np.random.Generator) -> Samples:
        """Training samples by their numbers."""

    def begin(self, seed: int) -> State:
        """The state before the first step."""
        keras.utils.set_random_seed(seed)
        model = self._make()
        return State(*map(_flat, (model.trainable_variables, _statistics(model.non_trainable_variables))))

    def steps(self, ranks: int) -> int:
        """The number of steps per epoch."""
        return self._train // (self.schedule.batch * ranks)

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The numbers of the training samples, in the order of an epoch."""
        return np.random.default_rng([seed, 0, epoch]).permutation(self._train)

    def batch(self, order: np.ndarray, seed: int, epoch: int, part: int) -> Samples:
        """The samples of one rank and step: part number `part` of an epoch's order, in units of a rank's batch."""
        chosen = order[part * self.schedule.batch :][: self.schedule.batch]
        return self._samples(chosen, np.random.default_rng([seed, 1, epoch, part]))

    def score(self, state: State, samples: Samples) -> Score:
        """Evaluates the model in a state."""
        weights, statistics, sums = *map(tf.constant, state), np.zeros(2)
        for begin in range(0, len(samples.labels), EVALUATED):
            part = [tf.constant(each[begin : begin + EVALUATED]) for each in samples]
            sums += self._sums(weights, statistics, *part).numpy()
        told, loss = sums / len(samples.labels)
        return Score(100.0 * float(told), float(loss))

    def _gradient(self, weights: Any, statistics: Any, inputs: Any, labels: Any) -> tuple[Any, Any, Any]:
        """The gradient [d] of the mean loss of a batch, the statistics after it [s], and the loss."""
        with tf.GradientTape() as tape:
            tape.watch(weights)
            values, others = unpacked(weights, self._shapes), self._others(statistics)
            logits, others = self._model.stateless_call(values, others, inputs, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        return tape.gradient(loss, weights), flat([statistics[:0], *_statistics(others)]), loss

    def _summed(self, weights: Any, statistics: Any, inputs: Any, labels: Any) -> Any:
        """The number of correct predictions, and the sum of losses."""
        logits, _ = self._model.stateless_call(unpacked(weights, self._shapes), self._others(statistics), inputs)
        told = tf.reduce_sum(tf.cast(tf.nn.in_top_k(labels, logits, 1), tf.float32))
        return tf.stack([told, tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))])

    def _others(self, statistics: Any) -> list[Any]:
        """The model's variables beside weights: statistics, and states of random generators, which are not used."""
        shapes = [each.shape for each in _statistics(self._held)]
        parts = iter(unpacked(statistics, shapes) if shapes else ())
        return [next(parts) if _statistics([each]) else each for each in self._held]


def _flat(variables: Sequence[Any]) -> np.ndarray:
    return np.concatenate([[], *(each.numpy().ravel() for each in variables)], dtype=np.float32)


def _statistics(held: Sequence[Any]) -> list[Any]:
    return [each for each in held if "float32" in str(each.dtype)]


class ImageTask(Task):
    """Crops of photographs for a small residual network; training crops are evaluated with noise, too."""

    def __init__(self, settings: ImageSettings):
        self._settings = settings
        self._data = convergence_data.crops("left", settings.train, 0)
        self._classes = int(self._data.labels.max()) + 1
        held_out = convergence_data.crops("right", settings.held_out, 0)
        held_out = self._noisy(held_out, np.random.default_rng(1))
        self.validation = Samples(*(each[: settings.watched] for each in held_out))
        self.test = Samples(*(each[settings.watched :] for each in held_out))
        self.fitted = self._noisy(self._data, np.random.default_rng(2))
        super().__init__(settings, settings.train, tf.TensorSpec([SIDE, SIDE, 1]))

    def _make(self):
        return small.small_resnet(self._classes, SIDE, blocks=self._settings.blocks, stride=self._settings.stride)

    def _samples(self, chosen, noise):
        return self._noisy(Crops(self._data.images[chosen], self._data.labels[chosen]), noise)

    def _noisy(self, crops: Crops, random: np.random.Generator) -> Samples:
        return Samples(convergence_data.noisy(crops.images, self._settings.noise, random), crops.labels)


class MessageTask(Task):
    """Messages for an LSTM, whose last state predicts the program; its steps are unrolled, which saves time."""

    def __init__(self, settings: MessageSettings):
        self._settings = settings
        self.programs = programs_of(settings)
        self.fitted, self.validation, self.test = (
            Samples(*part) for part in (self.programs.train, self.programs.validation, self.programs.test)
        )
        super().__init__(settings, len(self.fitted.labels), tf.TensorSpec([settings.pieces], tf.int32))

    def _make(self):
        inputs = keras.Input((self._settings.pieces,), dtype="int32")
        normal = keras.initializers.RandomNormal(stddev=1.0)  # Keras's uniform default is so small that SGD is slow
        x = keras.layers.Embedding(self._settings.vocabulary, self._settings.features, normal)(inputs)
        x = keras.layers.LSTM(self._settings.cells, unroll=True)(x)
        return keras.Model(inputs, keras.layers.Dense(self._settings.programs)(x))

    def _samples(self, chosen, noise):
        return Samples(self.fitted.inputs[chosen], self.fitted.labels[chosen])


def programs_of(settings: MessageSettings) -> averaging_data.Programs:
    """The data of these settings."""
    own = settings
    return averaging_data.programs(own.programs, own.most, own.vocabulary, own.pieces, own.held_out, own.folder)


@functools.lru_cache(1)
def task_of(settings: Settings) -> Task:
    """The task of some settings, reused if another run has had the same."""
    return ImageTask(settings) if isinstance(settings, ImageSettings) else MessageTask(settings)
