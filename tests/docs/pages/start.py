"""The user's own model and data; a vector and slices."""

import keras
import numpy as np
import tensorflow as tf

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
images = np.random.default_rng(0).standard_normal((32, 4)).astype("f4")
labels = np.argmax(images[:, :3], axis=1)

size = 1000
vector = tf.random.stateless_normal([size], [1, 2])
slices = tf.IndexedSlices(tf.ones([2]), tf.constant([0, 7], tf.int64), tf.constant([size], tf.int64))
