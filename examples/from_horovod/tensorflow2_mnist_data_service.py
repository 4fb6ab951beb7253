"""Digits prepared by tf.data's service: Horovod's tensorflow2_mnist_data_service.py.

    horovodrun -np 2 python -m examples.from_horovod.tensorflow2_mnist_data_service

`# <-` marks lines that differ from a script for Horovod. There a second job serves the data, and its configuration is
passed in a file; here rank 0 runs the dispatcher, every rank a worker, and the address is broadcast as an object. For
images that are read more than once, `datacache` keeps the read and decoded images.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd  # <- was: import horovod.tensorflow.keras as hvd
from examples.from_horovod.data import load_mnist


def main() -> None:
    """Trains for a number of epochs on batches prepared by any rank's worker, and prints the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=60, help="per epoch, divided by the number of ranks")
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    # <- was: TfDataServiceConfig.read(file)
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer() if hvd.rank() == 0 else None
    address = hvd.broadcast_object(dispatcher.target if dispatcher else None, root_rank=0)
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address.partition("://")[2]))

    (train_images, train_labels), (test_images, test_labels) = load_mnist()
    train_images, test_images = (
        (images[..., None] / 255.0).astype(np.float32) for images in (train_images, test_images)
    )
    data = tf.data.Dataset.from_tensor_slices((train_images, train_labels.astype(np.int64)))
    data = data.repeat().shuffle(len(train_labels)).batch(options.batch_size)
    # <- was: send_to_data_service
    data = data.apply(service.distribute(service.ShardingPolicy.OFF, address, job_name="digits"))

    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Dropout(0.25),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    scaled_lr = 0.001 * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(scaled_lr))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(), metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1),
    ]
    model.fit(
        data,
        steps_per_epoch=options.steps // hvd.size(),
        epochs=options.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    _, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.4f}")
    hvd.allreduce(0, name="done")  # barrier: a rank's worker also serves the other ranks, and the dispatcher serves all
    del worker, dispatcher


if __name__ == "__main__":
    main()
