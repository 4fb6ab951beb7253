"""Digits with `fit` and Horovod's callbacks: Horovod's tensorflow2_keras_mnist.py; `# <-` marks lines that differ.

horovodrun -np 2 python -m examples.from_horovod.tensorflow2_keras_mnist
"""

import argparse
import pathlib

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd  # <- was: import horovod.tensorflow.keras as hvd
from examples.from_horovod.data import load_mnist


def main() -> None:
    """Trains for a number of epochs with learning-rate warm-up, and prints the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=60, help="per epoch, divided by the number of ranks")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--directory", type=pathlib.Path, help="for rank 0's checkpoints (default: none)")
    options = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    (train_images, train_labels), (test_images, test_labels) = load_mnist()
    train_images, test_images = ((images[..., None] / 255.0) for images in (train_images, test_images))
    data = tf.data.Dataset.from_tensor_slices((train_images.astype(np.float32), train_labels.astype(np.int64)))
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
    scaled_lr = 0.001 * hvd.size()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(scaled_lr), backward_passes_per_step=1, average_aggregated_gradients=True
    )
    model.compile(  # <- was: also experimental_run_tf_function=False
        optimizer, keras.losses.SparseCategoricalCrossentropy(), metrics=["accuracy"]
    )

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1),
    ]
    if options.directory and hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(options.directory / "checkpoint-{epoch}.keras"))  # <- was: .h5

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


if __name__ == "__main__":
    main()
