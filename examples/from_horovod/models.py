"""The models that the examples select by name."""

from __future__ import annotations

import keras


def model_by_name(name: str, side: int, classes: int) -> keras.Model:
    """A model for images [count, side, side, 3]: any of `keras.applications`, or LeNet, which is quick to trace."""
    if name == "LeNet":
        return lenet(side, classes)
    return getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=classes)


def lenet(side: int, classes: int) -> keras.Model:
    """LeNet-5 with ReLU, for colour images."""
    return keras.Sequential(
        [
            keras.Input((side, side, 3)),
            keras.layers.Conv2D(6, 5, padding="same", activation="relu"),
            keras.layers.AveragePooling2D(2),
            keras.layers.Conv2D(16, 5, activation="relu"),
            keras.layers.AveragePooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(120, activation="relu"),
            keras.layers.Dense(84, activation="relu"),
            keras.layers.Dense(classes, activation="softmax"),
        ]
    )
