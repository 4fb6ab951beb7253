"""A rank of a job in which one process is killed and the others then ask for the exact mean of all.

`tests.keep_rank` starts it, so that the launcher does not end the others. Rank 0 writes the error to FOLDER.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys

import keras
import numpy as np

import hvd_sparse as hvd
from tests.averaging.dying_rank import DIES, model_of

TOLD = "told"
STEPS = 3


def main() -> None:
    """Runs on each rank, with a pipe; in the replacement of a killed one there is nothing to do."""
    folder, *pipe = sys.argv[1:]
    if not pipe:
        return
    hvd.init()
    telemetry = hvd.averaging.Telemetry()
    model = model_of(telemetry, seed=0)
    x = np.ones((8, 4), "f4")
    for _ in range(STEPS):
        model.train_on_batch(x, x.sum(1))
    if hvd.rank() == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    while not telemetry.read()["channel"]["silent"]:
        model.train_on_batch(x, x.sum(1))
    told = []
    for ask in (lambda: hvd.averaging.mean(model), lambda: hvd.averaging.resynchronise(model.optimizer)):
        try:
            ask()
        except RuntimeError as error:
            told.append(str(error))
    model.train_on_batch(x, x.sum(1))  # averaging continues
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    copy.save(pathlib.Path(folder) / "copy.keras")
    hvd.averaging.close(model.optimizer)
    pathlib.Path(folder, TOLD).write_text("\n".join(told))


if __name__ == "__main__":
    main()
