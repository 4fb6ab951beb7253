"""Helpers for the tests of Horovod's arguments: small optimizers and models, and how they are trained."""

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd

GRADIENTS = np.random.default_rng(1).integers(-8, 8, size=(12, 4)).astype("f4")


def sgd(**options):
    return keras.optimizers.SGD(1.0, **options)


def trained(optimizer, gradients=GRADIENTS, start=0.0):
    """The variable after the optimizer has applied gradients one after the other, and `iterations` at that point."""
    variable = keras.Variable(np.full(gradients.shape[1], start, "f4"), name="variable")
    counts = []
    for gradient in gradients:
        optimizer.apply_gradients(zip([tf.constant(gradient)], [variable], strict=True))
        counts.append(int(optimizer.iterations))
    return np.asarray(variable), counts


def model_with(optimizer, **options):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **options)
    return model


def saved(tmp_path, **options):
    model = model_with(hvd.DistributedOptimizer(sgd(momentum=0.5), **options))
    model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")
    return model, tmp_path / "model.keras"
