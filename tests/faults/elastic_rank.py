"""One rank of an elastic job: trains a small model by `fit`, and writes down what happens, one line of JSON each.

python -m tests.faults.elastic_rank FOLDER [options]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import signal
import time

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.machines.loopback_job import Log

RECIPES = {
    "dense": hvd.recipes.dense,
    "hitopk": lambda: hvd.recipes.hitopk(density=0.05),
    "recommended": lambda: hvd.recipes.recommended(density=0.05),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--recipe", choices=RECIPES, default="dense")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds that each step takes longer")
    parser.add_argument("--backup-dir", help="where commits are written when all ranks end")
    parser.add_argument("--tape", action="store_true", help="train in a loop of one's own, by a tape")
    parser.add_argument("--fault", choices=["nan"], help="a fault of the script's own, in its tenth step")
    parser.add_argument("--notice", choices=["before", "after"], help="SIGTERM to all: who leaves is told then")
    options = parser.parse_args()
    say = Log(options.folder)
    say(event="started")
    doomed = options.folder / "doomed"
    if doomed.exists():  # the next process that starts
        doomed.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.init()
    say(event="connected", rank=hvd.rank(), size=hvd.size())
    loop(options, say) if options.tape else train(options, say)
    say(event="ended")


def train(options: argparse.Namespace, say: Log) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(4)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), aggregator=RECIPES[options.recipe]())
    model.compile(optimizer, "mse")
    random = np.random.default_rng(0)
    x = random.standard_normal((640, 16)).astype("f4")
    y = x @ random.standard_normal((16, 4)).astype("f4")

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(options.pace)
            if options.fault == "nan" and batch == 9:
                model.trainable_variables[0].assign_add(np.full([16, 32], np.nan))
            say(event="step", rank=hvd.rank(), size=hvd.size(), epoch=state.epoch, batch=state.batch, loss=logs["loss"])

    @hvd.elastic.run
    def fit(state):
        say(event="trains", rank=hvd.rank(), size=hvd.size(), epoch=state.epoch, batch=state.batch)
        own = slice(hvd.rank(), None, hvd.size())
        model.fit(
            tf.data.Dataset.from_tensor_slices((x[own], y[own])).repeat().batch(8),
            steps_per_epoch=options.steps,
            epochs=options.epochs - state.epoch,
            callbacks=[
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.UpdateBatchStateCallback(state),
                Watch(),
                hvd.elastic.CommitStateCallback(state, 1),
            ],
            verbose=0,
        )

    class State(hvd.elastic.KerasState):
        def take_leave(self):
            if options.notice == "before":
                signal.raise_signal(signal.SIGTERM)
            may_end = super().take_leave()
            if options.notice == "after":
                signal.raise_signal(signal.SIGTERM)
            return may_end

    state = State(model, batch=0, epoch=0, backup_dir=options.backup_dir)
    state.register_reset_callbacks([lambda: say(event="reset", rank=hvd.rank(), size=hvd.size())])
    fit(state)
    weights = b"".join(each.tobytes() for each in model.get_weights())
    say(
        event="trained",
        rank=hvd.rank(),
        size=hvd.size(),
        steps=int(model.optimizer.iterations),
        weights=hashlib.sha256(weights).hexdigest(),
        loss=float(model.evaluate(x, y, verbose=0)),
    )


def loop(options: argparse.Namespace, say: Log) -> None:
    """Each rank's gradient is its number, so that the mean is known."""
    variable = tf.Variable(tf.zeros([8]))

    @hvd.elastic.run
    def train(state):
        @tf.function
        def step(own):
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(variable * own)
            (mean,) = tape.gradient(loss, [variable])
            return mean[0]

        while state.step < options.epochs * options.steps:
            state.step += 1
            mean = float(step(tf.fill([8], float(hvd.rank()))))
            say(event="step", rank=hvd.rank(), size=hvd.size(), batch=state.step, loss=mean)
            time.sleep(options.pace)
            state.commit()

    train(hvd.elastic.TensorFlowState([variable], step=0))
    say(event="trained", rank=hvd.rank(), size=hvd.size())


if __name__ == "__main__":
    main()
