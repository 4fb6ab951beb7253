"""A model that is trained with a recipe, and a dataset."""

import keras
import tensorflow as tf

import hvd_sparse as hvd
from tests.docs import pages

hvd.init()
model = pages.model()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(), aggregator=hvd.recipes.recommended(0.1)), "mse")
dataset = tf.data.Dataset.from_tensor_slices(pages.data()).batch(32)
