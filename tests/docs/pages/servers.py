"""A model, data, all of which every rank has, and how the optimizer is made in a rank that may be killed."""

import keras
import tensorflow as tf  # noqa: F401

import hvd_sparse as hvd
from tests.docs import pages

model = pages.model()
x, y = pages.data(256)


def make_optimizer() -> hvd.servers.ShardedServers:
    dropping = hvd.compressors.SampledThreshold(0.5)
    return hvd.servers.ShardedServers(keras.optimizers.Adam(0.01), push=dropping, pull=dropping, replicas=1)


end = hvd.servers.finish


def before_3() -> dict[str, object]:
    """A new model: the first block has ended the training of its own."""
    model = pages.model()
    model.compile(make_optimizer(), "mse")
    batches = hvd.servers.SharedBatches(len(x), batch_size=64)
    return {"model": model, "dataset": batches.dataset().map(lambda rows: (tf.gather(x, rows), tf.gather(y, rows)))}
