"""Two parts of a model, its data, and an optimizer; categories of three tables."""

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd


def make_bottom() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(64, "relu")])


def make_top() -> keras.Model:
    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(3, "softmax")])


parts = [make_bottom, make_top]
images = np.random.default_rng(0).standard_normal((256, 4)).astype("f4")
labels = np.argmax(images[:, :3], axis=1)
optimizer = keras.optimizers.Adam()
recipe = hvd.recipes.topk(0.01)
categories = tf.constant([[0, 1, 2], [4095, 999, 49_999]])
