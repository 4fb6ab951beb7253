"""A rank of a job that averages models by datagrams, in which one process is killed and replaced.

`tests.keep_rank` starts it. All train until the replacement has taken part in some complete rounds; it then writes a
file in FOLDER. Each rank records its model after each round.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import signal
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd

DIES, STEPS, WHOLE = 1, 20, 5
PAUSE = 0.05  # seconds per step, to leave the processor to the process that starts
LONG = 300.0  # seconds: time limits that even a busy machine does not reach
BACK = "back"


class Watch(keras.callbacks.Callback):
    """Records a model's bits after each round, and stops training when the job is over."""

    def __init__(self, telemetry: hvd.averaging.Telemetry, over: pathlib.Path):
        super().__init__()
        self.digests: dict[int, str] = {}
        self.whole = 0
        self._telemetry, self._over = telemetry, over

    def on_train_batch_end(self, batch, logs=None):
        told = self._telemetry.read()
        bits = b"".join(each.tobytes() for each in self.model.get_weights())
        self.digests[told["round"]] = hashlib.sha256(bits).hexdigest()
        self.whole += not told["channel"]["silent"] and not any(told["lost"].values())
        self.model.stop_training = self._over.exists()
        time.sleep(PAUSE)


class Death(keras.callbacks.Callback):
    """Kills the process, after it has passed on its ticket."""

    def __init__(self, pipe: int):
        super().__init__()
        self._pipe = pipe

    def on_train_batch_end(self, batch, logs=None):
        if batch == STEPS:
            os.write(self._pipe, hvd.averaging.ticket(self.model.optimizer))
            os.kill(os.getpid(), signal.SIGKILL)


class Return(keras.callbacks.Callback):
    """Ends the job after this rank has taken part in some rounds with all ranks and without loss."""

    def __init__(self, watch: Watch, over: pathlib.Path):
        super().__init__()
        self._watch, self._over = watch, over

    def on_train_batch_end(self, batch, logs=None):
        if self._watch.whole >= WHOLE:
            self._over.touch()


def model_of(telemetry: hvd.averaging.Telemetry, seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(300), keras.layers.Dense(1)])
    transport = hvd.averaging.Datagrams("127.0.0.1", rate=1e9, slack=LONG, least=LONG, patience=1.0)
    model.compile(hvd.averaging.ModelAveraging(keras.optimizers.SGD(0.01), transport, telemetry=telemetry), "mse")
    return model


def train(model: keras.Model, rank: int, *callbacks: keras.callbacks.Callback) -> None:
    x = np.random.default_rng(rank).standard_normal((64, 4)).astype("f4")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1))).batch(8).repeat()
    model.fit(data, steps_per_epoch=1_000_000, verbose=0, callbacks=list(callbacks))


def main() -> None:
    """Runs on each rank, with a pipe, and in the replacement of the one that was killed, without."""
    folder, *pipe = sys.argv[1:]
    over, telemetry = pathlib.Path(folder) / BACK, hvd.averaging.Telemetry()
    watch = Watch(telemetry, over)
    if pipe:
        hvd.init()
        rank = hvd.rank()
        model = model_of(telemetry, seed=0)
        train(model, rank, *([Death(int(pipe[0]))] if rank == DIES else []), watch)
    else:
        rank = DIES
        model = model_of(telemetry, seed=7)
        hvd.averaging.return_with(model.optimizer, sys.stdin.buffer.read())
        train(model, rank, watch, Return(watch, over))
    hvd.averaging.close(model.optimizer)
    told = {"rank": rank, "rounds": watch.digests, "steps": int(model.optimizer.iterations)}
    pathlib.Path(folder, f"{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
