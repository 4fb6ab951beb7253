"""The callback paired variables by Keras's automatic names, and hung if a rank had created other objects before."""

from __future__ import annotations

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd

X, Y = np.arange(32).reshape(16, 2) % 7, np.linspace(-1, 1, 16, dtype="f4")


def _model(outputs=1):
    layers = keras.layers
    inputs = keras.Input((2,), dtype="int32")
    hidden = layers.Dense(4, "tanh")(layers.Flatten()(layers.Embedding(7, 3)(inputs)))
    return keras.Model(inputs, layers.Dense(outputs)(layers.BatchNormalization()(hidden)))


def _trained(path):
    """Saves a trained model that has momentum and statistics; returns its values."""
    _model()  # so that the next model's layers get other automatic names than the first model of a process
    model = _model()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    model.save(path)
    return _values(model)


def _values(model):
    return [np.array(value) for value in (*model.weights, *model.optimizer.variables)]


class _First(keras.callbacks.Callback):
    """Records the model's values before the first batch and after the last."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            self.before = _values(self.model)

    def on_train_end(self, logs=None):
        self.after = _values(self.model)


def _fit(model):
    first = _First()
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(X, Y, batch_size=4, verbose=0, shuffle=False, callbacks=[broadcast, first])
    return first


def rank_0_loads_and_the_others_build():
    """All ranks start with the file's weights, statistics and momentum, and training stays equal."""
    if hvd.rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.keras"
            expected = _trained(path)
            model = hvd.load_model(path)
    else:
        model, expected = _model(), None
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    first = _fit(model)
    if expected is not None:
        for before, saved in zip(first.before, expected, strict=True):
            np.testing.assert_array_equal(before, saved)
    for value in (*first.before, *first.after):  # statistics are equal because the ranks have the same data
        flat = tf.constant(np.ravel(value).astype("f8")[np.newaxis])
        everywhere = hvd.allgather(flat).numpy()
        np.testing.assert_array_equal(everywhere[0], everywhere[1])


def ranks_with_other_shapes_are_told_alike():
    model = _model(outputs=1 + hvd.rank())
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    try:
        _fit(model)
    except ValueError as error:
        for text in ("dense", "[4, 1]", "[4, 2]", "rank 0", "rank 1"):
            assert text in str(error), str(error)
    else:
        raise AssertionError("expected a ValueError")
