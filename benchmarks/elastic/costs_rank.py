"""A rank of an elastic job that times steps with and without a guard of replicas, and commits.

    python -m benchmarks.elastic.costs_rank FOLDER --parameters 1000000 --rounds 4 --seconds 4 --commits 6

All is measured in one job: phases of `fit` with and without the guard in turn, then one with commits.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import pathlib
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.elastic.costs import EVERY
from benchmarks.machines.loopback_job import Log

BATCH, WARM = 32, 5  # WARM: steps of a phase before those that are timed
ENDLESS = 10**6  # steps of an epoch that a callback ends
ADAPTING = 2  # commits before those that are measured, until the interval follows the times


class State(hvd.elastic.KerasState):
    """Keeps when each commit began and ended."""

    def __init__(self, model: keras.Model):
        self.commits: list[tuple[float, float]] = []
        super().__init__(model)

    def commit(self) -> None:
        begun = time.perf_counter()
        super().commit()
        self.commits.append((begun, time.perf_counter()))


class Enough(keras.callbacks.Callback):
    """Ends training after some commits; to be passed after the callback that commits."""

    def __init__(self, state: State, commits: int):
        super().__init__()
        self._state, self._commits = state, commits

    def on_train_batch_end(self, batch, logs=None):
        if len(self._state.commits) >= self._commits:
            self.model.stop_training = True


class Times(keras.callbacks.Callback):
    """When each step ended; to be passed as the last one."""

    def __init__(self):
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())

    def mean(self) -> float:
        """The seconds of a step, without the first ones."""
        return (self.ends[-1] - self.ends[WARM - 1]) / (len(self.ends) - WARM)


def compiled(parameters: int) -> keras.Model:
    """A network of two square layers with so many parameters, about."""
    width = round(math.sqrt(parameters / 2))
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(width, "relu"), keras.layers.Dense(width)]
    model = keras.Sequential([keras.Input((width,)), *layers])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-4), aggregator=hvd.recipes.recommended(0.01))
    model.compile(optimizer, "mse")
    return model


def fit(model: keras.Model, data: tf.data.Dataset, steps: int, *callbacks: keras.callbacks.Callback) -> float:
    """Trains for some steps; the mean seconds of one."""
    times = Times()
    model.fit(data, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[*callbacks, times])
    return times.mean()


def agreed_steps(step: float, seconds: float) -> int:
    """The steps of a phase of so many seconds, the same on all ranks, with whole intervals of the guard after WARM.

    Args:
        step: the seconds of one, on this rank.
        seconds: of the phase.
    """
    intervals = math.ceil(seconds / step / EVERY)
    return WARM + EVERY * int(hvd.allreduce(tf.constant(intervals), op=hvd.Max, name="intervals"))


def of_commits(commits: list[tuple[float, float]], interval: float) -> dict[str, float]:
    """Milliseconds of a commit, their share of the time and the steps between two.

    Args:
        commits: when each began and ended.
        interval: the seconds of a step.
    """
    later = commits[ADAPTING:]
    spent = sum(end - begun for begun, end in later)
    elapsed = later[-1][1] - commits[ADAPTING - 1][1]
    milliseconds = 1e3 * statistics.median(end - begun for begun, end in later)
    steps = (elapsed - spent) / len(later) / interval
    return {"commit": milliseconds, "share": spent / elapsed, "steps": steps, "commits": len(later)}


@hvd.elastic.run
def measure(state: State, options: argparse.Namespace, log: Log) -> None:
    """Writes down what this rank has measured."""
    model = state.model
    width = model.input_shape[1]
    own = np.random.default_rng(hvd.rank()).standard_normal((8 * BATCH, width)).astype("f4")
    data = tf.data.Dataset.from_tensor_slices((own, np.sin(own))).repeat().batch(BATCH)
    fit(model, data, 2 * WARM)  # traces
    steps = agreed_steps(fit(model, data, 2 * WARM), options.seconds)
    arms: dict[str, list[float]] = {"plain": [], "guard": []}
    for number in range(options.rounds):
        for arm in arms if number % 2 == 0 else reversed(arms):
            guards = [hvd.callbacks.ReplicaGuardCallback(EVERY)] if arm == "guard" else []
            arms[arm].append(fit(model, data, steps, *guards))
    state.commits.clear()
    wanted = ADAPTING + options.commits
    fit(model, data, ENDLESS, hvd.elastic.CommitStateCallback(state), Enough(state, wanted))
    log(
        event="measured",
        rank=hvd.rank(),
        seconds=arms,
        commits=of_commits(state.commits[:wanted], statistics.median(arms["plain"])),
        parameters=model.count_params(),
        weights=hashlib.sha256(b"".join(each.tobytes() for each in model.get_weights())).hexdigest(),
    )


def main() -> None:
    """Runs the rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    for name in ("parameters", "rounds", "commits"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    hvd.init()
    measure(State(compiled(options.parameters)), options, Log(options.folder))


if __name__ == "__main__":
    main()
