"""What each rank runs in a job of which one process is killed while models are averaged by datagrams, and comes back.

`tests.keep_rank` starts it. All train until the one that is back has taken part in some whole rounds, which a file in
FOLDER says. Each tells what its model was after each round.
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
PAUSE = 0.05  # seconds, so that who lives leaves the processor to the one that starts
LONG = 300.0  # seconds: limits that no busy machine reaches
BACK = "back"


class Watch(keras.callbacks.Callback):
    """Notes a model's bits after each round, and ends training where the job ends."""

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
    """Ends the process without a word, after it has told its ticket."""

    def __init__(self, pipe: int):
        super().__init__()
        self._pipe = pipe

    def on_train_batch_end(self, batch, logs=None):
        if batch == STEPS:
            os.write(self._pipe, hvd.averaging.ticket(self.model.optimizer))
            os.kill(os.getpid(), signal.SIGKILL)


class Return(keras.callbacks.Callback):
    """Ends the job once this rank has taken part in some rounds in which all were there and nothing was lost."""

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
    """Of each rank, with a pipe; in the place of one that was killed, without."""
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
