"""A rank of a job on servers with replicas, in which one process is killed and replaced.

`keep_rank` starts it. The others train until the replacement writes a file in FOLDER.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time

import keras
import numpy as np

import hvd_sparse as hvd

DIES, STEPS, AGE = 1, 40, 8
BACK = "back"


class Death(keras.callbacks.Callback):
    """Kills the process, after it has passed on its ticket."""

    def __init__(self, pipe: int):
        super().__init__()
        self._pipe = pipe

    def on_train_batch_end(self, batch, logs=None):
        if batch == STEPS // 2:
            os.write(self._pipe, hvd.servers.ticket(self.model.optimizer))
            os.kill(os.getpid(), signal.SIGKILL)


def model_of() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    dropping = hvd.compressors.SampledThreshold(0.5)
    model.compile(
        hvd.servers.ShardedServers(
            keras.optimizers.Adam(0.01), push=dropping, pull=dropping, replicas=1, replica_age=AGE
        ),
        "mse",
    )
    return model


def train(model: keras.Model, rank: int, *callbacks: keras.callbacks.Callback) -> None:
    x = np.random.default_rng(rank).standard_normal((8 * STEPS, 4)).astype("f4")
    model.fit(x, x.sum(1), batch_size=8, verbose=0, callbacks=list(callbacks))


def end(model: keras.Model, rank: int) -> None:
    lost = model.optimizer.servers.telemetry()["updates_lost"]
    hvd.servers.finish(model.optimizer)
    weights = float(sum(np.square(each).sum() for each in model.get_weights()))
    print("told " + json.dumps({"rank": rank, "lost": lost, "weights": weights}), flush=True)


def first(folder: pathlib.Path, pipe: int) -> None:
    hvd.init()
    model = model_of()
    train(model, hvd.rank(), *([Death(pipe)] if hvd.rank() == DIES else []))
    while not (folder / BACK).exists():
        train(model, hvd.rank())
        time.sleep(1.0)
    end(model, hvd.rank())


def again(folder: pathlib.Path) -> None:
    model = model_of()
    hvd.servers.return_with(model.optimizer, sys.stdin.buffer.read())
    train(model, DIES)
    (folder / BACK).touch()
    assert model.optimizer.iterations > STEPS // 2, "it goes on where the job is"
    end(model, DIES)


def main() -> None:
    """Runs on each rank, with a pipe, and in the replacement of the one that was killed, without."""
    folder, *pipe = sys.argv[1:]
    if pipe:
        first(pathlib.Path(folder), int(pipe[0]))
    else:
        again(pathlib.Path(folder))


if __name__ == "__main__":
    main()
