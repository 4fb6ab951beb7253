"""A ResNet, as in He et al. (2016, 4.2) for CIFAR, and a VGG, both for small images: for studies on a few cores."""

from __future__ import annotations

from typing import Any

import keras


def small_resnet(classes: int, image: int = 32, blocks: int = 1, channels: int = 16, stride: int = 2) -> keras.Model:
    """The ResNet with 6 * blocks + 2 layers of He et al. (2016, 4.2) for grey images, logits at the end.

    Its three stages have `channels`, twice and four times as many channels; all but the first begin with a stride of 2.
    Where the shape changes, the shortcut is a 1 x 1 convolution (their option B; for CIFAR they pad instead).

    Args:
        classes: number of classes.
        image: height and width of the input, [batch, image, image, 1].
        blocks: number of blocks of two convolutions in each stage.
        channels: channels of the first stage.
        stride: stride of the first convolution; theirs is 1, and 2 takes a quarter of the time.
    """
    inputs = keras.Input((image, image, 1))
    x = _normalised(inputs, channels, 3, stride, "relu")
    for stage in range(3):
        for block in range(blocks):
            x = _block(x, channels * 2**stage, 2 if stage and not block else 1)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(classes)(x), name=f"small_resnet{6 * blocks + 2}")


def _block(x: Any, channels: int, stride: int) -> Any:
    within = _normalised(x, channels, 3, stride, "relu")
    within = _normalised(within, channels, 3, 1, None)
    around = x if stride == 1 and x.shape[-1] == channels else _normalised(x, channels, 1, stride, None)
    return keras.layers.ReLU()(keras.layers.Add()([within, around]))


def _normalised(x: Any, channels: int, kernel: int, stride: int, activation: str | None) -> Any:
    x = keras.layers.Conv2D(channels, kernel, stride, padding="same", use_bias=False)(x)
    x = keras.layers.BatchNormalization(momentum=0.95)(x)  # for short runs; Keras's default of 0.99 suits long ones
    return x if activation is None else keras.layers.Activation(activation)(x)


def small_vgg(classes: int, image: int = 32, channels: int = 16, features: int = 128) -> keras.Model:
    """A VGG (Simonyan and Zisserman 2015) of five convolutions and two dense layers for grey images, logits at the end.

    As in their networks, convolutions are 3 x 3, channels double after each pooling, and there is no normalisation.

    Args:
        classes: number of classes.
        image: height and width of the input, [batch, image, image, 1].
        channels: channels of the first convolution.
        features: units of the first dense layer.
    """
    inputs = keras.Input((image, image, 1))
    x = inputs
    for stage, convolutions in enumerate((1, 2, 2)):
        for _ in range(convolutions):
            x = _convolution(x, channels * 2**stage)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(features, activation="relu", kernel_initializer="he_normal")(x)
    x = keras.layers.Dropout(0.5)(x)
    return keras.Model(inputs, keras.layers.Dense(classes)(x), name="small_vgg7")


def _convolution(x: Any, channels: int) -> Any:
    return keras.layers.Conv2D(channels, 3, padding="same", activation="relu", kernel_initializer="he_normal")(x)
