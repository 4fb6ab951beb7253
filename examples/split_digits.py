"""A model split over two ranks: only the largest activations, and their gradients, cross the network.

    horovodrun -np 2 python -m examples.split_digits
    horovodrun -np 4 python -m examples.split_digits --trainers 2

With two trainers there are two copies of the model, of two ranks each, which exchange gradients by a sparse recipe.
"""

import argparse

import keras

import hvd_sparse as hvd
from examples import digits

STAGES = 2


def make_bottom() -> keras.Model:
    """The first half; only the rank that holds it calls this."""
    layers = [keras.layers.Flatten(), keras.layers.Dense(2048, "relu", name="bottom")]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers])


def make_top() -> keras.Model:
    """The second half."""
    layers = [keras.layers.Dense(256, "relu", name="top_1"), keras.layers.Dense(10, name="top_2")]
    return keras.Sequential([keras.Input((2048,)), *layers])


def main() -> None:
    """Trains on the handwritten digits; prints the test accuracy and how much each rank has sent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--sparsity", type=float, default=0.95, help="share of each activation that is not sent")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--trainers", type=int, default=1)
    options = parser.parse_args()

    grid = hvd.pipeline.Grid(options.trainers, STAGES)
    hvd.init(process_sets=grid.process_sets)
    trainer = grid.trainer_of(hvd.rank())
    keras.utils.set_random_seed(trainer)  # all ranks of a trainer see the same samples in the same order
    data = digits.load(seed=0)
    images, labels = digits.share(data, trainer, grid.trainers)

    optimizer = keras.optimizers.Adam(0.001)
    if grid.trainers > 1:
        recipe = hvd.recipes.topk(0.05)
        optimizer = hvd.DistributedOptimizer(optimizer, aggregator=recipe, process_set=grid.process_set)
    model = hvd.pipeline.Stages([make_bottom, make_top], options.micro_batches, sparsity=options.sparsity, grid=grid)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    verbose = 2 if hvd.rank() == 0 else 0
    model.fit(images, labels, batch_size=32, epochs=options.epochs, verbose=verbose)

    _, accuracy = model.evaluate(data.test_images, data.test_labels, verbose=0)
    told = hvd.allgather_object(model.telemetry())
    model.close()
    if hvd.rank() == 0:
        for rank, sent in enumerate(told):
            forward, backward = (round(sent[f"{name}_bytes"] / 1e3) for name in ("activation", "gradient"))
            print(f"rank {rank}: {forward} KB of activations, {backward} KB of gradients")
        print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
