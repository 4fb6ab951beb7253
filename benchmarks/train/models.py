"""The models of bench_train.py: ResNet-50, VGG-19 and a Transformer of any width, on random batches.

Width scales channels, features and heads; image and length scale the input; the models are in examples/models/. CommLib
mentions a Transformer of 110M parameters without its configuration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples.models.images import Images, resnet50, vgg19
from examples.models.transformer import Sentences, transformer

BATCHES = 8  # created before the run and yielded in turn
_PREFETCHED = 2
_MOMENTUM = 0.9


def image_batches(size: Images, seed: int) -> tf.data.Dataset:
    """Endless (images [batch, image, image, 3] float32, labels [batch]); pixels are scaled in the pipeline."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (BATCHES, size.batch, size.image, size.image, 3), np.uint8)
    labels = random.integers(0, size.classes, (BATCHES, size.batch), np.int32)
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).repeat()
    scaled = batches.map(lambda images, labels: (tf.cast(images, tf.float32) / 127.5 - 1.0, labels))
    return scaled.prefetch(_PREFETCHED)


def sentence_batches(size: Sentences, seed: int) -> tf.data.Dataset:
    """Endless ((sources, targets), next tokens), each [batch, length] int32, without padding."""
    random = np.random.default_rng(seed)
    tokens = random.integers(1, size.vocabulary, (BATCHES, size.batch, 2 * size.length + 1), np.int32)
    source, target = tokens[..., : size.length], tokens[..., size.length :]
    batches = ((source, target[..., :-1]), target[..., 1:])
    return tf.data.Dataset.from_tensor_slices(batches).repeat().prefetch(_PREFETCHED)


@dataclasses.dataclass(frozen=True)
class Task:
    """One of the three tasks: a model, its data and its optimizer.

    Attributes:
        size: the default size in the benchmark.
        model: makes the model from a size.
        batches: makes batches from a size and a seed.
        optimizer: makes the optimizer.
    """

    size: Images | Sentences
    model: Callable[[Any], keras.Model]
    batches: Callable[[Any, int], tf.data.Dataset]
    optimizer: Callable[[], keras.optimizers.Optimizer]


TASKS = {
    "resnet50": Task(
        Images(width=0.5, image=64, batch=8), resnet50, image_batches, lambda: keras.optimizers.SGD(0.01, _MOMENTUM)
    ),
    "vgg19": Task(
        Images(width=0.5, image=32, batch=8), vgg19, image_batches, lambda: keras.optimizers.SGD(0.001, _MOMENTUM)
    ),
    "transformer": Task(
        Sentences(width=0.5, length=32, batch=4, vocabulary=8_000, layers=3),  # with 6 layers, tracing takes minutes
        transformer,
        sentence_batches,
        lambda: keras.optimizers.Adam(1e-4, beta_2=0.98, epsilon=1e-9),
    ),
}
