"""One rank of an elastic job that reads through datacache; its model counts how often it was trained on each sample.

python -m tests.faults.elastic_samples FOLDER [options]

The counts are weights, so they are what the history that counts has. The rank also writes down the samples of each of
its batches, with the position before it and where training was begun or went on, before the other ranks get any of its
gradients: so what they have applied was written by all, also by a rank that is killed.
"""

from __future__ import annotations

import argparse
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf

import datacache
import hvd_sparse as hvd
from benchmarks.machines.loopback_job import Log
from tests.datacache.resuming import decode

COUNT, BATCH = 97, 4


class Counting(keras.layers.Layer):
    """Looks up one weight per sample, once the samples are noted.

    Args:
        note: called with the samples.
    """

    def __init__(self, note):
        super().__init__()
        self.note = note

    def build(self, shape):
        self.counts = self.add_weight(shape=(COUNT,), initializer="zeros", name="counts")

    def call(self, samples):
        noted = tf.numpy_function(self._noted, [samples[:, 0]], samples.dtype)  # the gradient needs what it returns
        return tf.linalg.matvec(tf.one_hot(tf.ensure_shape(noted, [None]), COUNT), self.counts)

    def _noted(self, samples):
        self.note(samples.tolist())
        return samples


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--pace", type=float, default=0.1, help="seconds that each step takes longer")
    parser.add_argument("--every", type=int, default=3, help="batches from one commit to the next")
    options = parser.parse_args()
    say = Log(options.folder)
    say(event="started")
    hvd.init()
    train(options, say)


def train(options: argparse.Namespace, say: Log) -> None:
    begun = []

    def note(samples):
        told = {"epoch": state.epoch, "position": state.position, "begun": begun, "samples": samples}
        say(event="step", rank=hvd.rank(), size=hvd.size(), **told)

    inputs = keras.Input([1], dtype="int64")
    model = keras.Model(inputs, Counting(note)(inputs))
    optimizer = keras.optimizers.SGD(float(hvd.size()))  # times the mean of the ranks' gradients: their sum
    optimizer = hvd.DistributedOptimizer(optimizer, aggregator=hvd.recipes.dense())
    model.compile(optimizer, lambda _, counts: -tf.reduce_sum(counts), jit_compile=False)

    def read(index: int) -> bytes:
        say(event="read", index=index)
        return np.int64(index).tobytes()

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(options.pace)

        def on_epoch_end(self, epoch, logs=None):
            say(event="epoch", rank=hvd.rank(), size=hvd.size(), epoch=state.epoch, position=state.position)

    source = datacache.Indexed(read, COUNT, "numbers", labels=range(COUNT), version="1")
    cache = datacache.DataCache(source, decode, options.folder / "local", memory_dir=options.folder / "shm")

    @hvd.elastic.run
    def fit(state):
        begun[:] = [state.epoch, state.position]
        training = cache.elastic(state, BATCH)
        say(event="trains", rank=hvd.rank(), size=hvd.size(), begun=begun)
        model.fit(
            training.dataset(),
            epochs=options.epochs,
            initial_epoch=training.epoch,
            steps_per_epoch=training.steps_per_epoch,
            callbacks=[training, Watch(), hvd.elastic.CommitStateCallback(state, options.every)],
            verbose=0,
        )

    state = hvd.elastic.KerasState(model, epoch=0, position=0)
    fit(state)
    counts = model.get_weights()[0].tolist()
    say(event="trained", size=hvd.size(), epoch=state.epoch, position=state.position, counts=counts)


if __name__ == "__main__":
    main()
