"""Digits in a custom training loop: Horovod's tensorflow2_mnist.py; `# <-` marks lines that differ from it.

horovodrun -np 2 python -m examples.from_horovod.tensorflow2_mnist
"""

import argparse
import pathlib

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd  # <- was: import horovod.tensorflow as hvd
from examples.from_horovod.data import load_mnist


def main() -> None:
    """Trains for a number of steps divided among the ranks, and prints the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="divided by the number of ranks")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--directory", type=pathlib.Path, help="for rank 0's checkpoint (default: none)")
    options = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    (train_images, train_labels), (test_images, test_labels) = load_mnist()
    train_images = (train_images[..., None] / 255.0).astype(np.float32)
    test_images = (test_images[..., None] / 255.0).astype(np.float32)
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
    loss_of = keras.losses.SparseCategoricalCrossentropy()
    optimizer = keras.optimizers.Adam(0.001 * hvd.size())
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)

    @tf.function
    def training_step(images, labels, first_batch):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        # After the first step, when the optimizer has created its variables.
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)  # <- was: optimizer.variables()
        return loss

    for batch, (images, labels) in enumerate(data.take(options.steps // hvd.size())):
        loss = training_step(images, labels, batch == 0)
        if batch % 10 == 0 and hvd.rank() == 0:
            print(f"step {batch}: loss {float(loss):.4f}")

    if options.directory and hvd.rank() == 0:
        checkpoint.save(str(options.directory / "checkpoint"))
    right = np.argmax(model(test_images), axis=1) == test_labels
    accuracy = hvd.allreduce(right.mean(), name="accuracy")
    if hvd.rank() == 0:
        print(f"test accuracy {float(accuracy):.4f}")


if __name__ == "__main__":
    main()
