"""What each rank runs in a job of which one process is killed while it trains on servers with replicas.

horovodrun -np 3 sh -c "python -m tests.servers.dying_rank || true"
"""

from __future__ import annotations

import json
import os
import signal

import keras
import numpy as np

import hvd_sparse as hvd

DIES, STEPS, AGE = 1, 40, 8


class Death(keras.callbacks.Callback):
    """Ends the process without a word."""

    def on_train_batch_end(self, batch, logs=None):
        if hvd.rank() == DIES and batch == STEPS // 2:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Trains, and tells how it ended."""
    hvd.init()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    dropping = hvd.compressors.SampledThreshold(0.5)
    optimizer = hvd.servers.ShardedServers(
        keras.optimizers.Adam(0.01), push=dropping, pull=dropping, replicas=1, replica_age=AGE
    )
    model.compile(optimizer, "mse")
    x = np.random.default_rng(hvd.rank()).standard_normal((8 * STEPS, 4)).astype("f4")
    model.fit(x, x.sum(1), batch_size=8, epochs=2, verbose=0, callbacks=[Death()])
    lost = optimizer.servers.telemetry()["updates_lost"]
    hvd.servers.finish(optimizer)
    weights = float(sum(np.square(each).sum() for each in model.get_weights()))
    print("told " + json.dumps({"rank": hvd.rank(), "lost": lost, "weights": weights}), flush=True)


if __name__ == "__main__":
    main()
