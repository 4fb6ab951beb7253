"""Images per second of `fit` on random images: Horovod's tensorflow2_keras_synthetic_benchmark.py.

    horovodrun -np 2 python -m examples.from_horovod.tensorflow2_keras_synthetic_benchmark

`# <-` marks lines that differ from a script for Horovod.
"""

import argparse
import time

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd  # <- was: import horovod.tensorflow.keras as hvd
from examples.from_horovod.data import random_images
from examples.from_horovod.models import model_by_name

CLASSES = 1000


class Timing(keras.callbacks.Callback):
    """Prints images per second for each epoch, and for all but the first, in which the model is traced."""

    def __init__(self, images_per_epoch: int):
        super().__init__()
        self.images = images_per_epoch
        self.rates: list[float] = []

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        rate = self.images / (time.perf_counter() - self.began)
        print(f"iteration {epoch}: {rate:.1f} images/s per rank", flush=True)
        if epoch > 0:
            self.rates.append(rate)

    def on_train_end(self, logs=None):
        if self.rates:
            mean, spread = hvd.size() * np.mean(self.rates), hvd.size() * 1.96 * np.std(self.rates)
            print(f"all {hvd.size()} ranks: {mean:.1f} +- {spread:.1f} images/s")


def main() -> None:
    """Trains a model of keras.applications on the same batch repeatedly, and prints images per second."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--density", type=float, help="share of the gradient to send")  # <- new
    parser.add_argument("--model", default="MobileNet", help="any model of keras.applications, or LeNet")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--num-batches-per-iter", type=int, default=2)
    parser.add_argument("--num-iters", type=int, default=4)
    options = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    side = options.image_size
    model = model_by_name(options.model, side, CLASSES)
    data = tf.data.Dataset.from_tensor_slices(random_images(options.batch_size, side, CLASSES))
    data = data.cache().repeat().batch(options.batch_size)
    compression = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none
    aggregator = hvd.recipes.hitopk(density=options.density) if options.density else None  # <- new
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.01),
        compression=compression,
        aggregator=aggregator,  # <- new
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy())  # <- was: experimental_run_tf_function=False

    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    if hvd.rank() == 0:
        print(f"model {options.model}, batch size {options.batch_size}, ranks {hvd.size()}", flush=True)
        callbacks.append(Timing(options.batch_size * options.num_batches_per_iter))
    model.fit(
        data,
        steps_per_epoch=options.num_batches_per_iter,
        epochs=options.num_iters,
        callbacks=callbacks,
        verbose=0,
    )


if __name__ == "__main__":
    main()
