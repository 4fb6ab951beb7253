"""What each page presupposes, by the page's name: the names with which its Python blocks run."""

from __future__ import annotations

import keras
import numpy as np


def model(outputs: int = 1) -> keras.Model:
    """A small model of vectors of length 4."""
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(outputs)])


def data(samples: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Vectors and targets for it, the same on all ranks."""
    x = np.random.default_rng(0).standard_normal((samples, 4)).astype("f4")
    return x, x.sum(1)
