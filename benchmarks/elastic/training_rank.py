"""A rank that trains until FOLDER/finish exists, whatever happens to the others, and writes down each of its steps.

    python -m benchmarks.elastic.training_rank FOLDER --pace 0.05

A network of 150,000 parameters is trained with `recommended`; a callback sleeps for `--pace` seconds in each step.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.machines.loopback_job import Log

ENDLESS = 10**6  # steps of the one epoch
INPUTS, HIDDEN, OUTPUTS, BATCH = 64, 320, 64, 8


class State(hvd.elastic.KerasState):
    """Writes down when the launcher's notice of a change comes."""

    log: Log

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        super().on_hosts_updated(timestamp, update_res)
        self.log(event="noticed")


class Steps(keras.callbacks.Callback):
    """Makes steps longer, writes them down, and ends training when all ranks have seen that it is to end."""

    def __init__(self, state: State, finish: pathlib.Path, pace: float):
        super().__init__()
        self._state, self._finish, self._pace = state, finish, pace

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(self._pace)
        self._state.log(event="step", rank=hvd.rank(), size=hvd.size(), batch=self._state.batch)
        asked = tf.constant(int(self._finish.exists()))
        if int(hvd.allreduce(asked, op=hvd.Max, name="finish")):
            self.model.stop_training = True


def compiled() -> keras.Model:
    """The network, with its optimizer."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(HIDDEN, "relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((INPUTS,)), *layers, keras.layers.Dense(OUTPUTS)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3), aggregator=hvd.recipes.recommended(0.01))
    model.compile(optimizer, "mse")
    return model


def batches() -> tf.data.Dataset:
    """Random samples without end, other ones on each rank."""
    samples = np.random.default_rng(hvd.rank()).standard_normal((64 * BATCH, INPUTS)).astype("f4")
    return tf.data.Dataset.from_tensor_slices((samples, np.sin(samples))).repeat().batch(BATCH)


def train(log: Log, folder: pathlib.Path, pace: float, commits: int | None) -> None:
    """Trains, and writes down how all ended."""
    model = compiled()

    @hvd.elastic.run
    def fit(state: State) -> None:
        log(event="trains", rank=hvd.rank(), size=hvd.size(), batch=state.batch)
        callbacks = [
            hvd.elastic.UpdateBatchStateCallback(state),
            Steps(state, folder / "finish", pace),
            hvd.elastic.CommitStateCallback(state, commits),
        ]
        model.fit(batches(), steps_per_epoch=ENDLESS, callbacks=callbacks, verbose=0)

    state = State(model, batch=0)
    state.log = log
    fit(state)
    weights = b"".join(each.tobytes() for each in model.get_weights())
    digest = hashlib.sha256(weights).hexdigest()
    log(event="trained", size=hvd.size(), steps=int(model.optimizer.iterations), weights=digest)


def main() -> None:
    """Runs the rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--pace", type=float, required=True)
    parser.add_argument("--commits", type=int, help="steps from one commit to the next (default: that of the callback)")
    options = parser.parse_args()
    log = Log(options.folder)
    log(event="imported")
    hvd.init()
    log(event="connected", rank=hvd.rank(), size=hvd.size())
    train(log, options.folder, options.pace, options.commits)


if __name__ == "__main__":
    main()
