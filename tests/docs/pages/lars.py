"""A model and data."""

import tensorflow as tf

from tests.docs import pages

model = pages.model()
dataset = tf.data.Dataset.from_tensor_slices(pages.data()).batch(32)
