"""Ranks of unequal speed on sharded servers: each takes a batch whenever it is ready, and waits for no other.

    horovodrun -np 4 python -m examples.unequal_ranks
    horovodrun -np 4 python -m examples.unequal_ranks --synchronous

The last rank takes twice as long for a step as the others: it sleeps, without using a core, as if its GPU were slower.
"""

import argparse
import time

import keras
import tensorflow as tf

import hvd_sparse as hvd
from examples import digits


class SlowGPU(keras.callbacks.Callback):
    """Sleeps in each step, and counts the steps."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds, self.steps = seconds, 0

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(self.seconds)
        self.steps += 1


def main() -> None:
    """Trains on the handwritten digits; prints how much each rank has done, and the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--step", type=float, default=0.05, help="seconds per step; the last rank takes twice as long")
    parser.add_argument("--synchronous", action="store_true", help="servers wait for the pushes of all ranks")
    options = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(0)
    data = digits.load(seed=0)
    batches = hvd.servers.SharedBatches(len(data.train_labels), batch_size=16)
    dataset = batches.dataset().map(
        lambda rows: (tf.gather(data.train_images, rows), tf.gather(data.train_labels, rows))
    )

    dropping = hvd.compressors.SampledThreshold(options.density)
    optimizer = hvd.servers.ShardedServers(
        keras.optimizers.Adagrad(0.02), push=dropping, pull=dropping, synchronous=options.synchronous
    )
    model = digits.make_model()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    gpu = SlowGPU(options.step * (2 if hvd.rank() == hvd.size() - 1 else 1))
    began = time.perf_counter()
    model.fit(dataset, epochs=options.epochs, callbacks=[gpu], verbose=2 if hvd.rank() == 0 else 0)
    seconds = time.perf_counter() - began
    hvd.servers.finish(optimizer)
    batches.close()

    steps = hvd.allgather_object(gpu.steps)
    if hvd.rank() == 0:
        _, accuracy = model.evaluate(data.test_images, data.test_labels, verbose=0)
        print(f"steps of each rank {steps}, {options.epochs * len(data.train_labels) / seconds:.0f} samples/s")
        print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
