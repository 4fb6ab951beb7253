"""A Horovod user's training loop; `# <-` marks the nine lines that differ from a loop for a single process.

    horovodrun -np 4 python -m examples.tape_digits

Compared with a loop for Horovod, only the import and the aggregator are new.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd  # <- was: import horovod.tensorflow as hvd
from examples import digits


def main() -> None:
    """Trains on the handwritten digits and prints the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--density", type=float, default=0.01)
    options = parser.parse_args()

    hvd.init()  # <-
    keras.utils.set_random_seed(hvd.rank())
    data = digits.load(seed=0)
    images, labels = digits.share(data, hvd.rank(), hvd.size())  # <-
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels)).batch(16)
    model = digits.make_model()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.025 * hvd.size())  # <-; its momentum is in the recipe
    with_momentum = hvd.recipes.momentum_corrected(hvd.recipes.hitopk(options.density), momentum=0.9)  # <- new
    aggregator = hvd.recipes.warmup(with_momentum, steps=options.epochs * len(batches))  # <- new

    hvd.broadcast_variables(model.variables, root_rank=0)  # <-

    @tf.function
    def step(batch, targets):
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(batch, training=True))
        tape = hvd.DistributedGradientTape(tape, aggregator=aggregator)  # <-
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for epoch in range(options.epochs):
        losses = [float(step(batch, targets)) for batch, targets in batches]
        if hvd.rank() == 0:  # <-
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")

    right = np.argmax(model(data.test_images), axis=1) == data.test_labels
    if hvd.rank() == 0:  # <-
        print(f"test accuracy {right.mean():.4f}")


if __name__ == "__main__":
    main()
