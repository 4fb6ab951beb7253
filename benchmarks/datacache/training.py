"""What files.py times: a small ResNet, the rivals' input pipelines, and one epoch of training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

SIDE = 96
BATCH = 32


class Epoch(NamedTuple):
    """Seconds of one epoch: in all, and of them those that the training step waited for its batch."""

    seconds: float
    waited: float
    steps: int


def decoded(payload: tf.Tensor) -> tf.Tensor:
    """A JPEG file of 500 x 375 as uint8 [96, 96, 3], for all arms; decoded at half its size, which is large enough."""
    image = tf.io.decode_jpeg(payload, channels=3, ratio=2)
    return tf.cast(tf.image.resize(image, (SIDE, SIDE)), tf.uint8)


_compiled = tf.function(decoded, input_signature=[tf.TensorSpec([], tf.string)])  # as a pipeline of tf.data has it


def decode(payload: bytes) -> np.ndarray:
    """The same for datacache."""
    return _compiled(tf.constant(payload)).numpy()


def rival(folder: Path, readers: int | None) -> tf.data.Dataset:
    """A parallel tf.data pipeline over an image folder, its files listed once.

    Args:
        folder: CLASS/NAME.jpg.
        readers: files that are read at a time, by as many threads of the pipeline's own; None leaves it to AUTOTUNE,
            which has no more threads than the machine has cores.
    """
    classes = tf.constant(sorted(path.name for path in folder.iterdir()))
    files = tf.data.Dataset.list_files(str(folder / "*" / "*.jpg"), shuffle=False)

    def read(path: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        name = tf.strings.split(path, "/")[-2]
        return tf.io.read_file(path), tf.argmax(tf.cast(tf.equal(classes, name), tf.int32))

    def make(payload: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return decoded(payload), label

    options = tf.data.Options()
    options.deterministic = False
    if readers is not None:
        options.threading.private_threadpool_size = readers + 2
    shuffled = files.shuffle(len(files), seed=0, reshuffle_each_iteration=True)
    read_ahead = shuffled.map(read, num_parallel_calls=readers or tf.data.AUTOTUNE)
    samples = read_ahead.map(make, num_parallel_calls=tf.data.AUTOTUNE)
    return samples.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE).with_options(options)


def synthetic(steps: int) -> tf.data.Dataset:
    """As many batches, made beforehand, to time training without input."""
    random = np.random.default_rng(0)
    pixels = tf.constant(random.integers(0, 256, (BATCH, SIDE, SIDE, 3), np.uint8))
    labels = tf.constant(random.integers(0, 2, BATCH), tf.int64)
    return tf.data.Dataset.from_tensors((pixels, labels)).repeat(steps)


class Trainer:
    """A small ResNet, trained by all arms in turn."""

    def __init__(self, classes: int):
        """Takes the number of labels; the step is compiled at once, so that no arm pays for it."""
        self._model, self._optimizer = small_resnet(classes), keras.optimizers.SGD(0.01, 0.9)
        self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._optimizer.build(self._model.trainable_variables)
        self._step = tf.function(self._train, reduce_retracing=True)
        for pixels, labels in synthetic(3):
            self._step(pixels, labels)

    @property
    def parameters(self) -> int:
        """The number of the model's parameters."""
        return self._model.count_params()

    def epoch(self, batches: tf.data.Dataset) -> Epoch:
        """Trains on all batches; the clock runs from before the iterator is made."""
        began, waited, steps = time.perf_counter(), 0.0, 0
        source: Iterator[Any] = iter(batches)
        while True:
            asked = time.perf_counter()
            batch = next(source, None)
            waited += time.perf_counter() - asked
            if batch is None:
                return Epoch(time.perf_counter() - began, waited, steps)
            float(self._step(*batch))
            steps += 1

    def _train(self, pixels: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self._loss(labels, self._model(tf.cast(pixels, tf.float32) / 127.5 - 1.0, training=True))
        variables = self._model.trainable_variables
        self._optimizer.apply(tape.gradient(loss, variables), variables)
        return loss


def small_resnet(classes: int, channels: int = 8) -> keras.Model:
    """Three stages of one basic block each (He et al. 2016) at 24, 12 and 6 pixels; logits at the end."""
    image = keras.Input((SIDE, SIDE, 3))
    x = _normalised(image, channels, 7, 4)
    for stage in range(3):
        x = _block(x, channels * 2**stage, 2 if stage else 1)
    return keras.Model(image, keras.layers.Dense(classes)(keras.layers.GlobalAveragePooling2D()(x)))


def _block(x: Any, channels: int, stride: int) -> Any:
    within = _normalised(_normalised(x, channels, 3, stride), channels, 3, 1)
    around = x if stride == 1 else keras.layers.Conv2D(channels, 1, stride, use_bias=False)(x)
    return keras.layers.ReLU()(keras.layers.Add()([within, around]))


def _normalised(x: Any, channels: int, kernel: int, stride: int) -> Any:
    x = keras.layers.Conv2D(channels, kernel, stride, padding="same", use_bias=False)(x)
    return keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
