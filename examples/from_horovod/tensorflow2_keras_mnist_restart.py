"""Digits in a job that continues with another number of ranks: by restart, in place of Horovod's elastic examples.

    horovodrun -np 2 python -m examples.from_horovod.tensorflow2_keras_mnist_restart --directory /tmp/job --epochs 3
    horovodrun -np 4 python -m examples.from_horovod.tensorflow2_keras_mnist_restart --directory /tmp/job --epochs 6

Horovod's elastic jobs admit ranks while they run; this job is started again and resumes from the newest complete
checkpoint: weights, momentum, the epoch, and the residuals of all ranks. `# <-` marks lines that differ from a script
for Horovod.
"""

import argparse
import pathlib

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd  # <- was: import horovod.tensorflow.keras as hvd
from examples.from_horovod.data import load_mnist


def main() -> None:
    """Trains up to a number of epochs, counted over all starts, and prints the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=pathlib.Path, required=True, help="for checkpoints, the same for all ranks")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=60, help="per epoch, divided by the number of ranks")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--density", type=float, default=0.01)
    options = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    (train_images, train_labels), (test_images, test_labels) = load_mnist()
    train_images, test_images = (
        (images[..., None] / 255.0).astype(np.float32) for images in (train_images, test_images)
    )
    data = tf.data.Dataset.from_tensor_slices((train_images, train_labels.astype(np.int64)))
    data = data.repeat().shuffle(len(train_labels), seed=hvd.rank()).batch(options.batch_size)

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
    # With N times the ranks a step sees N times the images: the rate follows, whatever the checkpoint held.
    scaled_lr = 0.01 * hvd.size()
    steps = options.steps // hvd.size()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(scaled_lr, momentum=0.9),
        aggregator=hvd.recipes.recommended(options.density),  # <- new
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(), metrics=["accuracy"])

    # <- was: hvd.elastic.KerasState, its callbacks, and a function under hvd.elastic.run
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.CheckpointCallback(options.directory),
        hvd.callbacks.LearningRateScheduleCallback(scaled_lr, multiplier=1.0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    history = model.fit(
        data,
        steps_per_epoch=steps,
        epochs=options.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    _, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks trained epochs {[epoch + 1 for epoch in history.epoch]}")
        print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
