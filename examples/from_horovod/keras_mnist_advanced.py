"""Digits with warm-up, distorted images and averaged metrics: Horovod's keras_mnist_advanced.py.

    horovodrun -np 2 python -m examples.from_horovod.keras_mnist_advanced

`# <-` marks lines that differ from a script for Horovod.
"""

import argparse
import pathlib

import keras
import tensorflow as tf

import hvd_sparse as hvd  # <- was: import horovod.keras as hvd
from examples.from_horovod.data import load_mnist

CLASSES = 10


def main() -> None:
    """Trains for a number of epochs, with 1/P of the images on each of P ranks, and prints the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--warmup-epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--directory", type=pathlib.Path, help="for rank 0's checkpoints (default: none)")
    options = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:  # <- was: a session's configuration
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    (train_images, train_labels), (test_images, test_labels) = load_mnist()
    train_images, test_images = (images[..., None] / 255.0 for images in (train_images, test_images))
    batches = len(train_labels) // options.batch_size
    data = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
    data = data.shuffle(len(train_labels), seed=hvd.rank()).repeat().batch(options.batch_size)

    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            # <- was: keras.preprocessing.image.ImageDataGenerator
            keras.layers.RandomRotation(8 / 360),
            keras.layers.RandomTranslation(0.08, 0.08),
            keras.layers.RandomZoom(0.08),
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
    scaled_lr = options.lr * hvd.size()
    optimizer = keras.optimizers.Adadelta(learning_rate=scaled_lr)  # <- was: lr=scaled_lr
    model.compile(hvd.DistributedOptimizer(optimizer), "sparse_categorical_crossentropy", metrics=["accuracy"])

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),  # before callbacks that read metrics, so that all ranks decide alike
        hvd.callbacks.LearningRateWarmupCallback(scaled_lr, warmup_epochs=options.warmup_epochs, verbose=1),
        keras.callbacks.ReduceLROnPlateau(patience=10, verbose=1),
    ]
    if options.directory and hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(options.directory / "checkpoint-{epoch}.keras"))  # <- was: .h5

    model.fit(  # <- was: fit_generator
        data,
        steps_per_epoch=batches // hvd.size(),
        epochs=options.epochs,
        callbacks=callbacks,
        validation_data=(test_images, test_labels),
        verbose=2 if hvd.rank() == 0 else 0,
    )
    _, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
