"""Elastic training on the handwritten digits: hosts may come and go, and ranks may die, while it trains.

    examples/launch/elastic.sh --hostfile hosts --min-np 2 -- python -m examples.elastic_digits

Take a line out of the host file while it runs, or kill a rank. It also runs under plain horovodrun.
"""

import argparse

import keras

import hvd_sparse as hvd
from examples import digits


def main() -> None:
    """Trains, and prints the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--backup-dir", help="shared by all hosts; the next job goes on from there if all ranks end")
    options = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    data = digits.load(seed=0)
    optimizer = keras.optimizers.SGD(0.025 * hvd.size(), momentum=0.9)  # follows the number of ranks
    optimizer = hvd.DistributedOptimizer(optimizer, aggregator=hvd.recipes.recommended(options.density))
    model = digits.make_model()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

    @hvd.elastic.run
    def train(state: hvd.elastic.KerasState) -> None:
        """Called again whenever the ranks have changed; goes on where the state is."""
        images, labels = digits.share(data, hvd.rank(), hvd.size())
        model.fit(
            images,
            labels,
            batch_size=16,
            epochs=options.epochs - state.epoch,
            callbacks=[
                hvd.callbacks.MetricAverageCallback(),
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.CommitStateCallback(state),
            ],
            verbose=2 if hvd.rank() == 0 else 0,
        )

    train(hvd.elastic.KerasState(model, epoch=0, batch=0, backup_dir=options.backup_dir))

    _, accuracy = model.evaluate(data.test_images, data.test_labels, verbose=0)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
