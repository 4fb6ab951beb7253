"""ResNet-50 and VGG-19 of any width, for images of one fixed size or of any size.

At width 1 they have 25,557,032 parameters (ResNet-50, He et al. 2016, without biases before batch normalisation) and
143,667,240 (VGG-19, Simonyan and Zisserman 2015, at 224 x 224 or for any size).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from examples.models.widths import scaled

_PLACES = 7  # height and width of the features before VGG-19's first dense layer
_MOVING = 0.9  # momentum of the moving statistics, low enough for them to follow a change of image size


@dataclasses.dataclass(frozen=True)
class Images:
    """The size of a network for images.

    Attributes:
        width: factor on the paper's channels and features.
        image: height and width of the input, at least 32; None for any, in one model.
        batch: images per rank and step.
        classes: number of classes.
    """

    width: float
    image: int | None
    batch: int
    classes: int = 1000


def resnet50(size: Images, last_gamma: str = "ones") -> keras.Model:
    """ResNet-50 (He et al. 2016), logits at the end; the stride is in the 3 x 3 convolution.

    Args:
        size: the size of the network.
        last_gamma: initializer for the scale of the last normalisation in a block; "zeros" makes every block begin as
            the identity, which helps with large batches (Goyal et al. 2017, 5.1).
    """
    image = keras.Input((size.image, size.image, 3))
    x = _normalised(image, scaled(64, size.width), 7, 2, "relu")
    x = keras.layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            x = _bottleneck(
                x, scaled(64 * 2**stage, size.width), 2 if stage and not block else 1, not block, last_gamma
            )
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, keras.layers.Dense(size.classes)(x), name="resnet50")


def _bottleneck(x: Any, channels: int, stride: int, shortcut: bool, last_gamma: str) -> Any:
    within = _normalised(x, channels, 1, 1, "relu")
    within = _normalised(within, channels, 3, stride, "relu")
    within = _normalised(within, 4 * channels, 1, 1, None, last_gamma)
    around = _normalised(x, 4 * channels, 1, stride, None) if shortcut else x
    return keras.layers.ReLU()(keras.layers.Add()([within, around]))


def _normalised(x: Any, channels: int, kernel: int, stride: int, activation: str | None, gamma: str = "ones") -> Any:
    x = keras.layers.Conv2D(channels, kernel, stride, padding="same", use_bias=False)(x)
    x = keras.layers.BatchNormalization(momentum=_MOVING, gamma_initializer=gamma)(x)
    return x if activation is None else keras.layers.Activation(activation)(x)


def vgg19(size: Images) -> keras.Model:
    """VGG-19 (Simonyan and Zisserman 2015, configuration E), logits at the end.

    If images may have any size, the last convolution's output is averaged to the 7 x 7 places that it has at 224 x
    224; otherwise the first dense layer takes all of its elements.
    """
    image = keras.Input((size.image, size.image, 3))
    x = image
    for channels, convolutions in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(convolutions):
            x = keras.layers.Conv2D(scaled(channels, size.width), 3, padding="same", activation="relu")(x)
        x = keras.layers.MaxPooling2D()(x)
    if size.image is None:
        x = PoolTo(_PLACES)(x)
    x = keras.layers.Flatten()(x)
    for seed in (1, 2):
        x = keras.layers.Dense(scaled(4096, size.width), activation="relu")(x)
        x = keras.layers.Dropout(0.5, seed=seed)(x)
    return keras.Model(image, keras.layers.Dense(size.classes)(x), name="vgg19")


@keras.saving.register_keras_serializable(package="examples")
class PoolTo(keras.layers.Layer):
    """Averages [batch, height, width, channels] to [batch, places, places, channels], for any height and width.

    Place i of n on a side of h is the mean over floor(i h / n) to before ceil((i + 1) h / n), as in Keras's
    AdaptiveAveragePooling2D, which needs to know h when the graph is built; if h = n, nothing changes.

    Args:
        places: n.
        options: arguments of `keras.layers.Layer`.
    """

    def __init__(self, places: int, **options: Any):
        super().__init__(**options)
        self.places = places

    def call(self, x: Any) -> Any:
        """Averages over rows, then over columns, each by a small matrix product."""
        _, height, width, _ = keras.ops.shape(x)
        x = keras.ops.einsum("ph,bhwc->bpwc", self._means(height), x)
        return keras.ops.einsum("qw,bpwc->bpqc", self._means(width), x)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[batch, places, places, channels]."""
        return (input_shape[0], self.places, self.places, input_shape[3])

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {**super().get_config(), "places": self.places}

    def _means(self, length: Any) -> Any:
        """[places, length]: row i has 1 / count at each of the elements that place i averages, 0 elsewhere."""
        place = keras.ops.arange(self.places)[:, None]
        element = keras.ops.arange(length)[None]
        begin = place * length // self.places
        end = -((-(place + 1) * length) // self.places)
        inside = keras.ops.cast(keras.ops.logical_and(element >= begin, element < end), self.compute_dtype)
        return inside / keras.ops.cast(end - begin, self.compute_dtype)
