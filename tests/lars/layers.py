"""Random layers of the kinds in ResNet-50 and the Transformer, but fewer and partly smaller."""

from __future__ import annotations

import contextlib
import functools

import keras
import numpy as np

# (path, shape); the last part of a path gives the kind of variable.
RESNET = [
    ("conv1/kernel", (7, 7, 3, 64)),
    ("norm1/gamma", (64,)),
    ("norm1/beta", (64,)),
    ("reduce/kernel", (1, 1, 256, 64)),
    ("conv2/kernel", (3, 3, 64, 64)),
    ("norm2/gamma", (256,)),
    ("norm2/beta", (256,)),
    ("expand/kernel", (1, 1, 64, 1001)),  # more than a block, and not a multiple of one
    ("predictions/kernel", (2048, 100)),
    ("predictions/bias", (100,)),
]
TRANSFORMER = [
    ("embedding/embeddings", (1000, 128)),
    ("attention/query/kernel", (128, 8, 16)),
    ("attention/query/bias", (8, 16)),
    ("attention/output/kernel", (8, 16, 128)),
    ("attention/output/bias", (128,)),
    ("norm/gamma", (128,)),
    ("norm/beta", (128,)),
    ("inner/kernel", (128, 513)),
    ("inner/bias", (513,)),
    ("outer/kernel", (513, 128)),
]
MODELS = {"resnet": RESNET, "transformer": TRANSFORMER}


def is_adapted(path: str) -> bool:
    """Whether a variable has weight decay and a trust ratio by default."""
    return path.rpartition("/")[2] not in ("bias", "gamma", "beta", "scale")


@functools.cache
def weights_of(model: str, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Initial values: kernels drawn as in Keras, normalisation scales of 1 and biases of 0."""
    random = np.random.default_rng(seed)
    return tuple(_drawn(path, shape, random).astype(np.float32) for path, shape in MODELS[model])


def _drawn(path: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    kind = path.rpartition("/")[2]
    if kind in ("gamma", "beta", "bias"):
        return np.full(shape, float(kind == "gamma"))
    return random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1]))


@functools.lru_cache(maxsize=8)
def _gradients(model: str, step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(1000 + step)
    return tuple(
        (random.standard_normal(shape) * 10.0 ** random.integers(-4, 1)).astype(np.float32)
        for _, shape in MODELS[model]
    )


def gradients_of(model: str, step: int) -> list[np.ndarray]:
    """Gradients of several magnitudes."""
    return [gradient.copy() for gradient in _gradients(model, step)]


def variables_of(model: str, seed: int = 0) -> list[keras.Variable]:
    """Keras variables with these paths and values."""
    return [variable(path, value) for (path, _), value in zip(MODELS[model], weights_of(model, seed), strict=True)]


def variable(path: str, value: np.ndarray, dtype: str = "float32") -> keras.Variable:
    """A variable as a layer would make it."""
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(value, dtype=dtype, name=name)
