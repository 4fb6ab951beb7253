"""A folder of images of two classes, how they are decoded, and a model of them."""

import pathlib

import keras
import numpy as np
import tensorflow as tf

import datacache  # noqa: F401
import hvd_sparse as hvd

hvd.init()
path = pathlib.Path("images")
epoch = 0


def decode(data: bytes) -> np.ndarray:
    return tf.io.decode_png(data).numpy().astype("f4")


def _write_images() -> None:
    for label in ("cat", "dog"):
        (path / label).mkdir(parents=True)
        for number in range(256):
            pixels = np.random.default_rng(number).integers(0, 255, (4, 4, 3)).astype("u1")
            (path / label / f"{number}.png").write_bytes(tf.io.encode_png(pixels).numpy())


if hvd.rank() == 0:
    _write_images()
hvd.barrier()

model = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Flatten(), keras.layers.Dense(2)])
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.001)), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
