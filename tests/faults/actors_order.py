"""Ranks that have made their layers in another order, from a set or a dict; on two ranks."""

from __future__ import annotations

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd

NAMES = ("left", "middle", "right")


def _model(names):
    """A sum of equal layers with given names, made in this order."""
    data = keras.Input([4])
    model = keras.Model(data, keras.layers.add([keras.layers.Dense(2, name=name)(data) for name in names]))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return model


def _train(model):
    model.fit(np.full([4, 4], 1.0 + hvd.rank()), np.ones([4, 2]), epochs=1, verbose=0)


def _require_told(train):
    """Checks that training is an error that names both layers."""
    try:
        train()
    except ValueError as error:
        told = str(error)
    else:
        raise AssertionError("layers in another order were paired")
    for part in ("disagree", "left", "right", "on rank 0", "on rank 1", "number 0"):
        assert part in told, told


def _turned(names):
    return names if hvd.rank() == 0 else names[::-1]


def control_a_rank_may_have_built_other_layers():
    for _ in range(5 * hvd.rank()):
        keras.layers.Dense(1)
    keras.utils.set_random_seed(0)
    layers = [keras.Input([4]), keras.layers.Dense(3), keras.layers.Dense(2, name="head")]
    model = keras.Sequential(layers)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    _train(model)
    for value in model.get_weights():
        assert np.ptp(hvd.allgather(tf.constant(value[np.newaxis])).numpy(), axis=0).max() == 0


def control_a_rank_may_have_loaded_the_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3), keras.layers.Dense(2, name="head")])
    if hvd.rank() == 1:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.keras"
            model.save(path)
            keras.backend.clear_session()
            model = keras.models.load_model(path)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    _train(model)
    for value in model.get_weights():
        assert np.ptp(hvd.allgather(tf.constant(value[np.newaxis])).numpy(), axis=0).max() == 0


def layers_of_a_dict_in_another_order_are_an_error():
    _require_told(lambda: _train(_model(_turned(NAMES))))


def variables_in_another_order_are_an_error():
    variables = [tf.Variable(tf.zeros([2]), name=name) for name in _turned(NAMES)]
    gradients = [tf.ones([2]) for _ in variables]
    _require_told(lambda: hvd.GradientExchange(hvd.recipes.topk(0.5))(gradients, variables))
