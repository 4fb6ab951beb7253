"""Helpers for the tests of checkpoints: a small training run with checkpoints, and ways to damage them."""

from __future__ import annotations

import os
import pathlib
import random
import warnings

import keras
import numpy as np

import hvd_sparse as hvd

FLIPS = int(os.environ.get("HVD_SPARSE_FLIPS", "2"))  # single-bit flips per kind of file
MARKER, WEIGHTS, RESIDUALS = "whole.json", "model.weights.h5", "residuals.npz"


def compiled(width=2):
    """A model with residuals, momentum and a random seed."""
    keras.utils.set_random_seed(hvd.rank())
    layers = [keras.layers.Dense(4), keras.layers.Dropout(0.25), keras.layers.Dense(width)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    optimizer = keras.optimizers.SGD(0.125, momentum=0.5)
    model.compile(hvd.DistributedOptimizer(optimizer, aggregator=hvd.recipes.topk(0.25)), "mse")
    return model


def fit(model, *callbacks, **options):
    """Trains for two steps per epoch, on different data on each rank."""
    x = np.random.default_rng(hvd.rank()).normal(size=(8, 3)).astype("f4")
    begin = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    return model.fit(x, x[:, :2], batch_size=4, shuffle=False, verbose=0, callbacks=[begin, *callbacks], **options)


def state(model):
    """The values of model and optimizer, and the sums of the residuals."""
    exchange = model.optimizer.exchange
    # These tests also run on commits in which it was called `kept`.
    total = exchange.residual_sum() if hasattr(type(exchange), "residual_sum") else exchange.kept()
    residuals = total.residuals
    return [
        *(np.array(keras.ops.convert_to_numpy(each)) for each in (*model.weights, *model.optimizer.variables)),
        *(residuals[name] for name in sorted(residuals)),
    ]


def assert_same(first, second):
    """Asserts that states are equal; the sums of residuals may differ in their last bits."""
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


class States(keras.callbacks.Callback):
    """Records the state at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.of = []

    def on_epoch_end(self, epoch, logs=None):
        self.of.append(state(self.model))


def trained(directory, epochs, **options):
    """A model trained with checkpoints, and its states by epoch."""
    model, states = compiled(), States()
    fit(model, hvd.callbacks.CheckpointCallback(directory, **options), states, epochs=epochs)
    return model, states.of


def resumed(model, directory):
    """Resumes from a checkpoint; returns the texts of the warnings."""
    for each in (*model.weights, *model.optimizer.variables):
        each.assign(keras.ops.full(each.shape, 7, each.dtype))
    callback = hvd.callbacks.CheckpointCallback(directory)
    callback.set_model(model)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        callback.on_train_begin()
    return [str(each.message) for each in given if issubclass(each.category, UserWarning)]


def flip(path: pathlib.Path, generator: random.Random) -> None:
    """Flips one bit of a file."""
    content = bytearray(path.read_bytes())
    bit = generator.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def folders(directory) -> list[str]:
    """The names in a directory, without the claim to it, which a process has until it ends if its training fails."""
    return sorted(path.name for path in pathlib.Path(directory).iterdir() if path.name != "claim.json")
