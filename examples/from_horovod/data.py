"""The data of these examples: scikit-learn's digits with MNIST's shapes, and random images."""

from __future__ import annotations

import numpy as np

from examples import extras

TRAIN = 1500
Images = tuple[np.ndarray, np.ndarray]


def load_mnist() -> tuple[Images, Images]:
    """The 1,797 digits in the form of Keras's MNIST: images [count, 28, 28] and labels [count], both uint8."""
    images, labels = extras.need("sklearn.datasets").load_digits(return_X_y=True)
    images = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    images = np.pad(images.repeat(3, axis=1).repeat(3, axis=2), [(0, 0), (2, 2), (2, 2)])
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order], labels[order].astype(np.uint8)
    return (images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:])


def random_images(count: int, side: int, classes: int, seed: int = 0) -> Images:
    """Images [count, side, side, 3] of noise, float32, and labels [count], for timing only."""
    random = np.random.default_rng(seed)
    return random.random((count, side, side, 3), np.float32), random.integers(0, classes, count)
