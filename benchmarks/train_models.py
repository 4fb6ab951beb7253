"""What bench_train.py trains: ResNet-50, VGG-19 and a Transformer, of any width, on batches made at random.

The architectures are those of the papers; width scales channels, features and heads, image and length the input. At
width 1 they have 25,557,032 parameters (ResNet-50, He et al. 2016, without a bias under batch normalisation),
143,667,240 (VGG-19, Simonyan and Zisserman 2015, at 224 x 224) and 63,082,496 (Transformer base, Vaswani et al. 2017,
one matrix of 37,000 tokens for both embeddings and the output). CommLib speaks of a Transformer of 110M without its
configuration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

BATCHES = 8  # made before the run and yielded in turn
_PREFETCHED = 2
_MOMENTUM = 0.9


@dataclasses.dataclass(frozen=True)
class Images:
    """How large a network for images is.

    Attributes:
        width: times the channels and features of the paper.
        image: height and width of the input, at least 32.
        batch: images a rank and step.
        classes: at the output.
    """

    width: float
    image: int
    batch: int
    classes: int = 1000


@dataclasses.dataclass(frozen=True)
class Sentences:
    """How large a Transformer is.

    Attributes:
        width: times the features and heads of Transformer base (512, 2048 and 8).
        length: tokens of a sentence, in both languages.
        batch: pairs of sentences a rank and step.
        vocabulary: tokens, of both languages together.
        layers: of the encoder, and of the decoder.
    """

    width: float
    length: int
    batch: int
    vocabulary: int = 37_000
    layers: int = 6


def resnet50(size: Images) -> keras.Model:
    """ResNet-50 (He et al. 2016), logits at the end; the stride is in the 3 x 3 convolution."""
    image = keras.Input((size.image, size.image, 3))
    x = _normalised(image, _scaled(64, size.width), 7, 2, "relu")
    x = keras.layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            x = _bottleneck(x, _scaled(64 * 2**stage, size.width), 2 if stage and not block else 1, shortcut=not block)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, keras.layers.Dense(size.classes)(x), name="resnet50")


def _bottleneck(x: Any, channels: int, stride: int, shortcut: bool) -> Any:
    within = _normalised(x, channels, 1, 1, "relu")
    within = _normalised(within, channels, 3, stride, "relu")
    within = _normalised(within, 4 * channels, 1, 1, None)
    around = _normalised(x, 4 * channels, 1, stride, None) if shortcut else x
    return keras.layers.ReLU()(keras.layers.Add()([within, around]))


def _normalised(x: Any, channels: int, kernel: int, stride: int, activation: str | None) -> Any:
    x = keras.layers.Conv2D(channels, kernel, stride, padding="same", use_bias=False)(x)
    x = keras.layers.BatchNormalization()(x)
    return x if activation is None else keras.layers.Activation(activation)(x)


def vgg19(size: Images) -> keras.Model:
    """VGG-19 (Simonyan and Zisserman 2015, configuration E), logits at the end."""
    image = keras.Input((size.image, size.image, 3))
    x = image
    for channels, convolutions in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(convolutions):
            x = keras.layers.Conv2D(_scaled(channels, size.width), 3, padding="same", activation="relu")(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Flatten()(x)
    for seed in (1, 2):
        x = keras.layers.Dense(_scaled(4096, size.width), activation="relu")(x)
        x = keras.layers.Dropout(0.5, seed=seed)(x)
    return keras.Model(image, keras.layers.Dense(size.classes)(x), name="vgg19")


def transformer(size: Sentences, features: int = 512, hidden: int = 2048, heads: int = 8) -> keras.Model:
    """Transformer base (Vaswani et al. 2017, Table 3), each layer normalised after it; nothing is padded."""
    maker = _TransformerMaker(_scaled(features, size.width), _scaled(hidden, size.width), _scaled(heads, size.width))
    source = keras.Input((size.length,), dtype="int32")
    target = keras.Input((size.length,), dtype="int32")
    embedding = keras.layers.ReversibleEmbedding(size.vocabulary, maker.features)  # its transpose is the output
    memory = maker.embedded(source, embedding, size.length)
    for _ in range(size.layers):
        memory = maker.attended(memory, memory)
        memory = maker.transformed(memory)
    x = maker.embedded(target, embedding, size.length)
    for _ in range(size.layers):
        x = maker.attended(x, x, use_causal_mask=True)
        x = maker.attended(x, memory)
        x = maker.transformed(x)
    return keras.Model([source, target], embedding(x, reverse=True), name="transformer")


class _TransformerMaker:
    """Adds sublayers; dropout is numbered, so that two models made alike drop alike."""

    def __init__(self, features: int, hidden: int, heads: int):
        self.features, self._hidden, self._heads = features, hidden, heads
        self._seed = 0

    def embedded(self, tokens: Any, embedding: Any, length: int) -> Any:
        """Embeddings and sinusoids."""
        angles = np.arange(length)[:, np.newaxis] / 10_000 ** (np.arange(0, self.features, 2) / self.features)
        positions = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, self.features)
        return self._dropped(embedding(tokens) * self.features**0.5 + positions.astype("float32"))

    def attended(self, x: Any, memory: Any, **options: Any) -> Any:
        """Attention from x to memory, added and normalised."""
        attention = keras.layers.MultiHeadAttention(self._heads, self.features // self._heads)
        return self._added(x, attention(x, memory, **options))

    def transformed(self, x: Any) -> Any:
        """The two dense layers at each place, added and normalised."""
        within = keras.layers.Dense(self._hidden, activation="relu")(x)
        return self._added(x, keras.layers.Dense(self.features)(within))

    def _added(self, x: Any, within: Any) -> Any:
        return keras.layers.LayerNormalization(epsilon=1e-6)(x + self._dropped(within))

    def _dropped(self, x: Any) -> Any:
        self._seed += 1
        return keras.layers.Dropout(0.1, seed=self._seed)(x)


def _scaled(count: int, width: float) -> int:
    scaled = count * width
    if scaled < 1 or scaled != int(scaled):
        raise ValueError(f"Expected a width that leaves whole numbers of channels, got {width} of {count}.")
    return int(scaled)


def image_batches(size: Images, seed: int) -> tf.data.Dataset:
    """(images [batch, image, image, 3] float32, labels [batch]) for ever; pixels are scaled in the pipeline."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (BATCHES, size.batch, size.image, size.image, 3), np.uint8)
    labels = random.integers(0, size.classes, (BATCHES, size.batch), np.int32)
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).repeat()
    scaled = batches.map(lambda images, labels: (tf.cast(images, tf.float32) / 127.5 - 1.0, labels))
    return scaled.prefetch(_PREFETCHED)


def sentence_batches(size: Sentences, seed: int) -> tf.data.Dataset:
    """((sources, targets), next tokens), each [batch, length] int32, for ever."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, size.vocabulary, (BATCHES, size.batch, 2 * size.length + 1), np.int32)
    source, target = tokens[..., : size.length], tokens[..., size.length :]
    batches = ((source, target[..., :-1]), target[..., 1:])
    return tf.data.Dataset.from_tensor_slices(batches).repeat().prefetch(_PREFETCHED)


@dataclasses.dataclass(frozen=True)
class Task:
    """One of the three: how it is made, and what it is trained with.

    Attributes:
        size: what the benchmark trains where nothing else is asked for.
        model: makes it from a size.
        batches: makes its batches from a size and a seed.
        optimizer: makes its optimizer.
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
        Sentences(width=0.5, length=32, batch=4, vocabulary=8_000, layers=3),  # with 6 its graphs take minutes to make
        transformer,
        sentence_batches,
        lambda: keras.optimizers.Adam(1e-4, beta_2=0.98, epsilon=1e-9),
    ),
}
