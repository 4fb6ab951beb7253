"""One rank of the demo: python -m examples.demo.rank RUNS EPOCHS; rank 0 writes the results of all ranks to RUNS."""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.convergence import data as convergence_data
from examples.demo.settings import (
    BATCH_SIZE,
    HELD_OUT,
    LEARNING_RATE,
    MOMENTUM,
    NOISE,
    RECIPES,
    SEED,
    STEPS,
    TARGET,
    TRAINING,
)


class Clock(keras.callbacks.Callback):
    """Measures seconds of training, without evaluation on held-out crops and without the first step.

    Attributes:
        curve: [seconds, accuracy on held-out crops] after each epoch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.curve: list[list[float]] = []
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch, logs=None):
        self._begun = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self._begun)

    def on_epoch_end(self, epoch, logs=None):
        self.curve.append([sum(self.seconds[1:]), float(logs["val_accuracy"])])


def make_model() -> keras.Model:
    """1.1 million parameters for grey crops of 32 x 32 pixels of 20 photographs."""
    layers = keras.layers
    convolutions = [
        layer
        for filters in (32, 64)
        for layer in (
            layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
        )
    ]
    hidden = [layers.Dense(256, use_bias=False), layers.BatchNormalization(momentum=0.9), layers.ReLU()]
    return keras.Sequential([keras.Input((32, 32, 1)), *convolutions, layers.Flatten(), *hidden, layers.Dense(20)])


def batches(training: convergence_data.Crops) -> tf.data.Dataset:
    """This rank's batches, in the same order for every recipe, with new noise each time."""

    def drawn():
        random = np.random.default_rng([SEED, hvd.rank()])
        while True:
            chosen = random.integers(len(training.labels), size=BATCH_SIZE)
            yield convergence_data.noisy(training.images[chosen], NOISE, random), training.labels[chosen]

    kinds = (tf.TensorSpec([BATCH_SIZE, 32, 32, 1]), tf.TensorSpec([BATCH_SIZE], tf.int32))
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread may sleep for up to a minute before it notices the iterator's end
    return tf.data.Dataset.from_generator(drawn, output_signature=kinds).prefetch(4).with_options(options)


def train(name: str, epochs: int, training: convergence_data.Crops, held_out: convergence_data.Crops) -> dict[str, Any]:
    """Trains from the start and returns this rank's results."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(SEED + hvd.rank())  # weights differ at first; the broadcast makes them equal
    steps = epochs * STEPS
    rate = keras.optimizers.schedules.CosineDecay(
        LEARNING_RATE / 10, steps, warmup_target=LEARNING_RATE, warmup_steps=steps // 10
    )
    telemetry = hvd.Telemetry()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(rate, MOMENTUM), aggregator=RECIPES[name](hvd.recipes), telemetry=telemetry
    )
    model = make_model()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    clock = Clock()
    model.fit(
        batches(training),
        steps_per_epoch=STEPS,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        validation_data=(held_out.images, held_out.labels),
        validation_batch_size=500,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), clock],
    )
    weights = b"".join(np.asarray(weight).tobytes() for weight in model.trainable_variables)  # statistics differ
    return {
        "recipe": name,
        "curve": clock.curve,
        "step_seconds": float(np.median(clock.seconds[1:])),
        "across": telemetry.total_bytes_across,
        "weights": hashlib.sha256(weights).hexdigest(),
    }


def told(run: dict[str, Any], number: int) -> str:
    """A line of progress."""
    reached = next((f"{seconds:.1f} s" for seconds, accuracy in run["curve"] if accuracy >= TARGET), "-")
    seconds, accuracy = run["curve"][-1]
    return (
        f"[{number}/{len(RECIPES)}] {run['recipe']:12s} {seconds:6.1f} s of training, "
        f"{1e3 * run['step_seconds']:.0f} ms per step, accuracy {accuracy:.3f}, {TARGET:.0%} reached after: {reached}"
    )


def main() -> None:
    """Trains with each recipe in turn."""
    hvd.init()
    training = convergence_data.crops("left", TRAINING, SEED)  # each rank draws its own batches from all of them
    held_out = convergence_data.crops("right", HELD_OUT, SEED)
    random = np.random.default_rng(SEED)
    held_out = held_out._replace(images=convergence_data.noisy(held_out.images, NOISE, random))
    runs = []
    for number, name in enumerate(RECIPES, 1):
        runs.append(train(name, int(sys.argv[2]), training, held_out))
        if hvd.rank() == 0:
            print(told(runs[-1], number), flush=True)
    everyones = hvd.topology.world().gather_descriptions(runs, "demo.runs")
    if hvd.rank() == 0:
        pathlib.Path(sys.argv[1]).write_text(json.dumps(everyones))


if __name__ == "__main__":
    main()
