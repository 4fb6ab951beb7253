"""What one rank does in the translation part of bench_servers.py: python -m benchmarks.servers.translation JOB RESULTS.

JOB is a JSON file: {"arms": [{"name", "model", "arm"}, ...], "rounds": [[name, ...], ...], "window": seconds}, with
models and arms of the study of gradient dropping. The ranks train the LSTM that the study simulates, on batches of
their own; all arms are prepared first, and then take turns. In the end all ranks must hold the same parameters. Rank 0
writes RESULTS: {"batches": {name: batches of an epoch of the study}, "windows": [{"arm": name, "ranks": what each rank
did}, ...]}.
"""

from __future__ import annotations

import functools
import itertools
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.dropping.runs import options_of
from benchmarks.dropping.settings import ARMS
from benchmarks.exchange.rank import Clock, job_and_results, write_json
from benchmarks.servers.model import RATE
from benchmarks.servers.rank import WARM, begin_together, checksum
from examples import translation
from examples.text.batches import PAD


@functools.cache
def prepared() -> translation.Task:
    """The pairs of the machine's message catalogues, the same for all batch sizes."""
    return translation.prepare(options_of("lstm"))


class Trained:
    """The model of one arm, on servers.

    Attributes:
        batches: batches of an epoch of the study, in which clients take turns at one order of them.
    """

    def __init__(self, model: str, arm: str):
        options, chosen, task = options_of(model), ARMS[arm].settings(), prepared()
        self.batches = translation.training_batches(options, task, 0, 1).steps
        own = translation.training_batches(options, task, hvd.rank(), hvd.size())
        self._batches = itertools.chain.from_iterable(own.epoch(epoch) for epoch in itertools.count())
        self._model = translation.make_model(options, task.vocabulary)
        self._loss = translation.smoothed_crossentropy(options)
        adam = keras.optimizers.Adam(RATE, beta_2=0.98, epsilon=1e-9)
        self._optimizer = hvd.servers.ShardedServers(adam, push=chosen.push, pull=chosen.pull)
        self._optimizer.build(self._model.trainable_variables)
        tokens, weights = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None], tf.float32)
        self._compute = tf.function(self._gradients, [*[tokens] * 3, weights], autograph=False)
        self._apply = tf.function(self._applied, autograph=False)

    def step(self) -> float:
        """Makes a step; returns the seconds that the gradient took."""
        batch = next(self._batches)
        began = time.monotonic()
        gradients = self._compute(*batch, (batch.labels != PAD).astype(np.float32))
        computed = time.monotonic() - began
        self._apply(gradients)
        return computed

    def check(self) -> int:
        """Stops the servers; returns the parameters' checksum, after checking that they are finite."""
        hvd.servers.finish(self._optimizer)
        return checksum([variable.numpy() for variable in self._model.trainable_variables])

    def _gradients(self, source, target, labels, weights):
        with hvd.looking_ahead(self._optimizer), tf.GradientTape() as tape:
            loss = self._loss(labels, self._model([source, target], training=True), weights)
        return tape.gradient(loss, self._model.trainable_variables)

    def _applied(self, gradients):
        self._optimizer.apply(gradients, self._model.trainable_variables)


def run_arm(trained: Trained, window: float, clock: Clock) -> dict[str, Any]:
    """This rank's results in a window: steps, seconds, and the seconds in which it computed."""
    clock.meet()
    began = ended = begin_together()
    computed: list[float] = []
    while ended < began + window:
        computed.append(trained.step())
        ended = time.monotonic()
    return {"steps": len(computed), "seconds": ended - began, "computed": sum(computed)}


def main() -> None:
    """Runs the command."""
    job, path = job_and_results(__doc__)
    tf.get_logger().setLevel("ERROR")
    hvd.init(local_size=1)
    clock, windows, world = Clock(), [], hvd.topology.world()
    keras.utils.set_random_seed(0)
    trained = {arm["name"]: Trained(arm["model"], arm["arm"]) for arm in job["arms"]}
    for each in trained.values():
        for _ in range(WARM):
            each.step()
    for names in job["rounds"]:
        for name in names:
            ranks = world.gather_descriptions(run_arm(trained[name], job["window"], clock), "arm")
            windows.append({"arm": name, "ranks": ranks})
    for name, each in trained.items():
        if len(set(world.gather_descriptions(each.check(), "parameters"))) != 1:
            raise AssertionError(f"{name}: the ranks end with different parameters")
    if hvd.rank() == 0:
        batches = {name: each.batches for name, each in trained.items()}
        write_json(path, {"batches": batches, "windows": windows})


if __name__ == "__main__":
    main()
