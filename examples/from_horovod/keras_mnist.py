"""Digits with `fit` and a minimum of code: Horovod's keras_mnist.py; `# <-` marks lines that differ from it.

horovodrun -np 2 python -m examples.from_horovod.keras_mnist
"""

import argparse
import math
import pathlib

import keras
import tensorflow as tf

import hvd_sparse as hvd  # <- was: import horovod.keras as hvd
from examples.from_horovod.data import load_mnist

CLASSES = 10


def main() -> None:
    """Trains for a number of epochs divided among the ranks, and prints the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=float, default=12, help="divided by the number of ranks")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--directory", type=pathlib.Path, help="for rank 0's checkpoints (default: none)")
    options = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:  # <- was: a session's configuration
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    (train_images, train_labels), (test_images, test_labels) = load_mnist()
    train_images, test_images = (images[..., None] / 255.0 for images in (train_images, test_images))
    train_labels, test_labels = (keras.utils.to_categorical(labels, CLASSES) for labels in (train_labels, test_labels))

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
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adadelta(1.0 * hvd.size()))
    model.compile(optimizer, "categorical_crossentropy", metrics=["accuracy"])

    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    if options.directory and hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(options.directory / "checkpoint-{epoch}.keras"))  # <- was: .h5

    model.fit(
        train_images,
        train_labels,
        batch_size=options.batch_size,
        epochs=math.ceil(options.epochs / hvd.size()),
        callbacks=callbacks,
        validation_data=(test_images, test_labels),
        verbose=2 if hvd.rank() == 0 else 0,
    )
    _, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
