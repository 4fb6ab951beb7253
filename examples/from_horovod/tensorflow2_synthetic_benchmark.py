"""Images per second of a custom loop on random images: Horovod's tensorflow2_synthetic_benchmark.py.

    horovodrun -np 2 python -m examples.from_horovod.tensorflow2_synthetic_benchmark

`# <-` marks lines that differ from a script for Horovod.
"""

import argparse
import timeit

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd  # <- was: import horovod.tensorflow as hvd
from examples.from_horovod.data import random_images
from examples.from_horovod.models import model_by_name

CLASSES = 1000


def main() -> None:
    """Trains a model of keras.applications on the same batch repeatedly, and prints images per second."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--density", type=float, help="share of the gradient to send")  # <- new
    parser.add_argument("--model", default="MobileNet", help="any model of keras.applications, or LeNet")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--num-warmup-batches", type=int, default=2)
    parser.add_argument("--num-batches-per-iter", type=int, default=2)
    parser.add_argument("--num-iters", type=int, default=3)
    options = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    side = options.image_size
    model = model_by_name(options.model, side, CLASSES)
    optimizer = keras.optimizers.SGD(0.01)
    images, labels = (tf.constant(each) for each in random_images(options.batch_size, side, CLASSES))
    compression = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none
    aggregator = hvd.recipes.hitopk(density=options.density) if options.density else None  # <- new

    @tf.function
    def step(first_batch):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression, aggregator=aggregator)  # <- aggregator is new
        gradients = tape.gradient(losses, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)  # <- was: optimizer.variables()

    def log(text):
        if hvd.rank() == 0:
            print(text, flush=True)

    log(f"model {options.model}, batch size {options.batch_size}, ranks {hvd.size()}")
    step(first_batch=True)
    timeit.timeit(lambda: step(first_batch=False), number=options.num_warmup_batches)
    rates = []
    for number in range(options.num_iters):
        seconds = timeit.timeit(lambda: step(first_batch=False), number=options.num_batches_per_iter)
        rates.append(options.batch_size * options.num_batches_per_iter / seconds)
        log(f"iteration {number}: {rates[-1]:.1f} images/s per rank")
    mean, spread = np.mean(rates), 1.96 * np.std(rates)
    log(f"all {hvd.size()} ranks: {hvd.size() * mean:.1f} +- {hvd.size() * spread:.1f} images/s")


if __name__ == "__main__":
    main()
