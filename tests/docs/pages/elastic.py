"""A model, an optimizer, data and an elastic state; and a cloud that has told that this host will be gone."""

import threading
import time

import keras
import tensorflow as tf

import hvd_sparse as hvd
from tests.docs import pages

__all__ = ["notice_at", "threading", "time"]
hvd.init()
model, optimizer, loss = pages.model(), keras.optimizers.Adam(), "mse"
SAMPLES, BATCH, EPOCHS = 64, 8, 2
state = hvd.elastic.ObjectState(step=0)


def my_dataset(rank: int, size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(pages.data()).shard(size, rank).repeat().batch(BATCH)


def notice_at(address: str) -> bool:
    return address.startswith("http://169.254.169.254/")
