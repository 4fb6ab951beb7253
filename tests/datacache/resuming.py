"""A training script as a user would write it, for the tests of resuming; it can be made to kill itself.

The model counts: its one weight has an entry per sample, and each step adds 1 for each sample of the global batch. So a
model shows which samples it has been trained on, for any number of ranks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import datacache
from datacache import World, files

COUNT, EPOCHS, BATCH = 47, 3, 5


def read(index: int) -> bytes:
    """The source's bytes."""
    return np.int64(index).tobytes()


def decode(payload: bytes) -> np.ndarray:
    """A sample as its number."""
    return np.frombuffer(payload, np.int64)


class Counting(keras.layers.Layer):
    """Looks up one weight per sample."""

    def build(self, shape):
        self.counts = self.add_weight(shape=(COUNT,), initializer="zeros", name="counts")

    def call(self, samples):
        return tf.linalg.matvec(tf.one_hot(samples[:, 0], COUNT), self.counts)


class Summing(keras.Model):
    """Adds up the gradients of all ranks, using only Horovod."""

    def train_step(self, data):
        samples, labels = data
        tf.debugging.assert_equal(samples[:, 0], labels)
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(self(samples, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        if "HOROVOD_RANK" in os.environ:
            gradients = [hvd.allreduce(each, op=hvd.Sum) for each in gradients]
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class Death(keras.callbacks.Callback):
    """Kills the process with SIGKILL after a batch, before the batch can be saved."""

    def __init__(self, epoch: int, batch: int):
        super().__init__()
        self._when = [epoch, batch]

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if [self._epoch, batch] == self._when:
            kill()


def kill() -> None:
    """Kills this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_save(moment: str, number: int) -> None:
    """Kills the process in the save of this number: before position, name or directory entry are on disk."""
    done, sync, save_weights = [], files.sync, keras.Model.save_weights

    def save_then_die(model, *arguments, **options):
        save_weights(model, *arguments, **options)
        done.append(None)
        if len(done) == number and moment == "position":
            kill()

    def sync_then_die(path):
        sync(path)
        if len(done) == number and moment == ("name" if path.is_file() else "directory"):
            kill()

    keras.Model.save_weights, files.sync = save_then_die, sync_then_die


def compiled(sparse: bool = False) -> keras.Model:
    """The model; with hvd_sparse, elements that are not sent at once are kept as a residual."""
    inputs = keras.Input([1], dtype="int64")
    if sparse:
        model, aggregator = keras.Model(inputs, Counting()(inputs)), hvd.recipes.topk(0.05)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), aggregator=aggregator)
        model.compile(optimizer, lambda _, counts: -tf.reduce_sum(counts), jit_compile=False)
        return model
    model = Summing(inputs, Counting()(inputs))
    model.compile(keras.optimizers.SGD(1.0), jit_compile=False)
    return model


def run(
    folder: Path,
    batch_size: int = BATCH,
    death: list | None = None,
    shared: bool = True,
    sparse: bool = False,
    residuals: bool = True,
) -> None:
    """Runs the script."""
    if death is not None and isinstance(death[0], str):
        die_in_save(*death)
    rank = int(os.environ.get("HOROVOD_RANK", "0"))
    source = datacache.Indexed(read, COUNT, "numbers", labels=range(COUNT))
    with datacache.DataCache(
        source, decode, folder / "local", memory_dir=folder / "shm", world=World.from_environment()
    ) as cache:
        training = cache.training(
            folder / ("checkpoints" if shared else f"checkpoints-{rank}"),
            batch_size,
            save_every=3,
            broadcast=None if shared else hvd.broadcast_object,
            beside=hvd.checkpoint if sparse and residuals else None,
        )
        model = compiled(sparse)
        last = rank == cache.world.size - 1
        dying = [Death(*death)] if last and death is not None and not isinstance(death[0], str) else []
        model.fit(
            training.dataset().map(lambda samples, labels: (samples, labels)),
            epochs=EPOCHS,
            initial_epoch=training.epoch,
            steps_per_epoch=training.steps_per_epoch,
            callbacks=[*dying, training],
            verbose=0,
        )
        if rank == 0:
            (folder / "end.json").write_text(json.dumps(model.get_weights()[0].tolist()))


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    if settings.get("sparse"):
        import hvd_sparse as hvd

        hvd.init(local_size=1)
    elif "HOROVOD_RANK" in os.environ:
        import horovod.tensorflow as hvd

        hvd.init()
    run(Path(settings.pop("folder")), **settings)
