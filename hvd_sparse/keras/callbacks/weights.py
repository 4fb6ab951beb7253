"""A model's weights as a file of a checkpoint."""

from __future__ import annotations

import hashlib
import io
import pathlib

import keras

from hvd_sparse.keras.callbacks import folders
from hvd_sparse.storage import files


class _WeightsFile(io.BytesIO):
    """A file in memory to which Keras writes weights; Keras checks the end of its name."""

    def __str__(self) -> str:
        return f"memory.{folders.WEIGHTS}"


def write_weights(model: keras.Model, path: pathlib.Path) -> str:
    """Writes the weights from memory, as HDF5 may abort the process on a full disk; returns the file's SHA-256."""
    made = _WeightsFile()
    model.save_weights(made)
    content = made.getbuffer()
    with files.replacing(path) as file:
        file.write(content)
    return hashlib.sha256(content).hexdigest()
