"""A rank of `bench_scale`: trains on the digits, and measures what it costs to take part."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import subprocess
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from examples import digits

BATCH = 64  # of all ranks together
UNMEASURED = 2  # epochs before the first that is measured, in which graphs are made and sockets opened


class Costs(keras.callbacks.Callback):
    """Bytes on this process's sockets, payload, steps and seconds, from the end of the first epochs to the last."""

    def __init__(self, telemetry: hvd.Telemetry):
        super().__init__()
        self._telemetry, self._began, self.steps = telemetry, np.zeros(4), 0
        self.first = 0.0

    def on_train_batch_end(self, batch, logs=None):
        self.first = self.first or time.time()
        self.steps += 1

    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 == UNMEASURED:
            self._began = self._now()

    def found(self) -> dict[str, float]:
        """Per step, since the first epochs."""
        sent, payload, steps, seconds = self._now() - self._began
        return {"control": (sent - payload) / steps, "payload": payload / steps, "milliseconds": 1e3 * seconds / steps}

    def _now(self) -> np.ndarray:
        return np.array([sent_by_sockets(), self._telemetry.total_bytes_across, self.steps, time.time()], float)


def sent_by_sockets() -> int:
    """The bytes that all open TCP sockets of this process have sent, as the kernel counts them."""
    told = subprocess.run(["ss", "-tinpHO"], capture_output=True, text=True, check=True).stdout
    own = [line for line in told.splitlines() if f"pid={os.getpid()}," in line]
    return sum(int(found[1]) for line in own if (found := re.search(r"bytes_sent:(\d+)", line)))


def resources() -> dict[str, float]:
    """Memory that is this process's alone in MB, open descriptors and threads."""
    status = pathlib.Path("/proc/self/status").read_text()
    values = {name: int(re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)[1]) for name in ("RssAnon", "Threads")}
    return {
        "megabytes": values["RssAnon"] / 1024,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": values["Threads"],
    }


def trained(epochs: int, rate: float, launched: float) -> dict[str, Any]:
    """Trains with `recommended`; what it cost this rank, and the accuracy on the test half."""
    imported = time.time()
    hvd.init(local_size=1)
    begun = time.time()
    keras.utils.set_random_seed(0)
    data = digits.load(0)
    images, labels = digits.share(data, hvd.rank(), hvd.size())
    model, telemetry = digits.make_model(), hvd.Telemetry()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(rate), aggregator=hvd.recipes.recommended(0.01), telemetry=telemetry
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    costs = Costs(telemetry)
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    batch = BATCH // hvd.size()
    model.fit(images, labels, batch_size=batch, epochs=epochs, verbose=0, callbacks=[broadcast, costs])
    found = costs.found() | resources()
    found |= {"import": imported - launched, "init": begun - imported, "first step": costs.first - begun}
    weights = np.concatenate([np.ravel(each) for each in model.get_weights()])
    apart = float(np.max(np.abs(hvd.broadcast(weights, 0, name="apart").numpy() - weights)))
    _, accuracy = model.evaluate(data.test_images, data.test_labels, batch_size=900, verbose=0)
    return {**found, "apart": apart, "accuracy": float(accuracy), "steps": costs.steps, "weights": len(weights)}


def main() -> None:
    """Runs the rank; the first one writes what all found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("to", type=pathlib.Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--launched", type=float, required=True)
    options = parser.parse_args()
    tf.config.set_visible_devices([], "GPU")
    every = hvd.allgather_object(trained(options.epochs, options.rate, options.launched))
    if hvd.rank() == 0:
        options.to.write_text(json.dumps(every))


if __name__ == "__main__":
    main()
