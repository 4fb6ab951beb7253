"""A Horovod user's Keras script; `# <-` marks the nine lines that differ from a script for a single process.

    horovodrun -np 4 python -m examples.keras_digits

Compared with a script for Horovod's own Keras module, only the import and the aggregator are new.
"""

import argparse

import keras

import hvd_sparse as hvd  # <- was: import horovod.tensorflow.keras as hvd
from examples import digits


def main() -> None:
    """Trains on the handwritten digits and prints the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--checkpoint-dir", help="saves each epoch here, and resumes from the newest")
    options = parser.parse_args()

    hvd.init()  # <-
    keras.utils.set_random_seed(hvd.rank())
    data = digits.load(seed=0)
    images, labels = digits.share(data, hvd.rank(), hvd.size())  # <-

    optimizer = keras.optimizers.SGD(0.025 * hvd.size(), momentum=0.9)  # <-
    optimizer = hvd.DistributedOptimizer(  # <-
        optimizer,
        aggregator=hvd.recipes.recommended(options.density),  # <- new
    )
    model = digits.make_model()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # <-
        hvd.callbacks.MetricAverageCallback(),  # <-
    ]
    if options.checkpoint_dir:
        callbacks.append(hvd.callbacks.CheckpointCallback(options.checkpoint_dir))
    verbose = 2 if hvd.rank() == 0 else 0  # <-
    model.fit(images, labels, batch_size=16, epochs=options.epochs, callbacks=callbacks, verbose=verbose)

    _, accuracy = model.evaluate(data.test_images, data.test_labels, verbose=0)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
