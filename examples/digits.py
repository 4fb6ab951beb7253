"""Real images that need no download: the 1,797 handwritten digits that scikit-learn ships, 8x8 greyscale pixels."""

from __future__ import annotations

from typing import NamedTuple

import keras
import numpy as np

from examples import extras


class Digits(NamedTuple):
    """Images [count, 8, 8, 1] float32 in [0, 1] and labels [count]; half of all digits are held out for the test."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load(seed: int) -> Digits:
    """Splits the digits into two halves at random, by a seed."""
    images, labels = extras.need("sklearn.datasets").load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    order = np.random.default_rng(seed).permutation(len(labels))
    train, test = np.array_split(order, 2)
    return Digits(images[train], labels[train], images[test], labels[test])


def share(digits: Digits, rank: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """One rank's part of the training half; all parts are equally large, so that all ranks take equally many steps."""
    count = len(digits.train_labels) // size
    own = slice(rank * count, (rank + 1) * count)
    return digits.train_images[own], digits.train_labels[own]


def make_model() -> keras.Model:
    """A small convolutional network: 38,282 parameters."""
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
