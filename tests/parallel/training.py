"""Helpers shared by the cases that train with Keras."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse import topology

L = keras.layers
RECIPES = {
    "dense": hvd.recipes.dense(),
    "torus2d": hvd.recipes.torus2d(),
    "topk": hvd.recipes.topk(0.25),
    "mstopk": hvd.recipes.mstopk(0.25),
    "hitopk": hvd.recipes.hitopk(0.25),
}
EVERYTHING = hvd.recipes.topk(1.0)  # a sparse recipe that sends all elements


def own_data(count=32, width=6, outputs=2):
    """Different data on each rank; the targets are a function that can be learned."""
    generator = np.random.default_rng(hvd.rank())
    x = generator.normal(size=(count, width)).astype("f4")
    return x, np.tanh(x @ np.linspace(-1, 1, width * outputs).reshape(width, outputs)).astype("f4")


def network(width=6, hidden=16, outputs=2, layers=()):
    return keras.Sequential([keras.Input((width,)), L.Dense(hidden, "tanh"), *layers, L.Dense(outputs)])


def distributed(optimizer=None, aggregator="hitopk", **options):
    recipe = RECIPES.get(aggregator) if isinstance(aggregator, str) else aggregator
    return hvd.DistributedOptimizer(optimizer or keras.optimizers.SGD(0.05, momentum=0.5), aggregator=recipe, **options)


def assert_replicas_equal(*groups):
    """Asserts that these variables have the same bits on every rank."""
    arrays = [np.asarray(tf.convert_to_tensor(variable)) for group in groups for variable in group]
    digests = topology.world().gather_descriptions([array.tobytes().hex() for array in arrays], "test.replicas")
    assert all(digest == digests[0] for digest in digests), "the replicas differ"


def on_every_rank(value):
    """The values of all ranks, in rank order."""
    return topology.world().gather_descriptions(value, "test.values")


def shared_folder():
    """A folder that all ranks of this host can access."""
    mine = tempfile.mkdtemp() if hvd.rank() == 0 else None
    return pathlib.Path(on_every_rank(mine)[0])


@contextlib.contextmanager
def raises(kind, *texts):
    """Expects an error that contains these texts, on any rank that calls it."""
    try:
        yield
    except kind as error:
        for text in texts:
            assert text in str(error), f"expected {text!r} in: {error}"
    else:
        raise AssertionError(f"expected {kind.__name__} with {texts}")


@contextlib.contextmanager
def a_gpu():
    """Makes Keras believe that there is a device other than the CPU; on such machines it enables XLA."""
    original = tf.config.list_physical_devices
    tf.config.list_physical_devices = lambda *_: [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]
    try:
        yield
    finally:
        tf.config.list_physical_devices = original
