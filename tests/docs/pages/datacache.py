"""A folder of images of two classes, a model of them, and a function that returns scenes."""

import json
import pathlib

import h5py
import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd

hvd.init()
path = pathlib.Path("images")


def _write_images() -> None:
    for label in ("cat", "dog"):
        (path / label).mkdir(parents=True)
        for number in range(256):
            pixels = np.random.default_rng(number).integers(0, 255, (4, 4, 3)).astype("u1")
            (path / label / f"{number}.png").write_bytes(tf.io.encode_png(pixels).numpy())


def _write_other_kinds() -> None:
    """Images in one folder with a table of their classes, and frames in HDF5."""
    pictures = pathlib.Path("pictures")
    pictures.mkdir()
    rows = ["path,class"]
    for number in range(8):
        (pictures / f"{number}.png").write_bytes((path / "cat" / f"{number}.png").read_bytes())
        rows.append(f"{number}.png,{number % 2}")
    pathlib.Path("labels.csv").write_text("\n".join(rows))
    with h5py.File("frames.h5", "w") as file:
        file["frames"] = np.random.default_rng(0).integers(0, 255, (32, 8, 8, 3)).astype("u1")


if hvd.rank() == 0:
    _write_images()
    _write_other_kinds()
hvd.barrier()


def read(index: int) -> bytes:
    """A scene with as many boxes as its number says."""
    boxes = [[0.1 * each, 0.1, 0.5, 0.5] for each in range(index % 4)]
    return json.dumps({"pixels": [[index, 2], [3, 4]], "boxes": boxes, "caption": f"scene {index}"}).encode()


endpoint = "http://127.0.0.1:9"  # nothing is asked until the source is listed
model = keras.Sequential(
    [keras.Input((224, 224, 3)), keras.layers.AveragePooling2D(56), keras.layers.Flatten(), keras.layers.Dense(2)]
)
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.SGD(1e-4)), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
