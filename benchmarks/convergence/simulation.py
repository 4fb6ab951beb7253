"""Trainings of the convergence study with the ranks as threads of one process, which takes less time.

    python -m benchmarks.convergence.simulation JOB

JOB is as for rank.py, with models for translation only; finished runs are added to the same store.

Four processes on two cores spend most of a step waiting for each other; threads that exchange in memory do not. Weights
and bytes are those of real ranks, to the bit (see threads.py). Evaluation runs as one rank on all the data.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.convergence.rank import keep
from benchmarks.convergence.settings import ARMS, MODELS, TranslationSettings
from benchmarks.convergence.tasks import TranslationTask
from benchmarks.convergence.threads import FlatModel, Rank
from examples import translation
from examples.text import batches
from examples.text.batches import PAD
from examples.training import arguments
from hvd_sparse.transport.communicator import Grid
from tests import threads

WAITING = 64  # threads: each collective that waits for other ranks holds one
BATCH = (*[tf.TensorSpec([None, None], tf.int32)] * 3, tf.TensorSpec([None, None], tf.float32))  # with weights


class TranslationSimulation:
    """`convergence_tasks.TranslationLearner` with threads as ranks.

    Args:
        translated: the task and the recipe.
        nodes: number of nodes.
        local: ranks per node.

    Raises:
        ValueError: if the model drops features, which each rank draws for itself.
    """

    def __init__(self, translated: TranslationTask, nodes: int, local: int):
        dropout = translated.options(0).dropout
        if dropout:
            raise ValueError(f"Expected a model without dropout, got {dropout}: train it on real ranks.")
        self._translated, self._nodes, self._local = translated, nodes, local

    def train(self, seed: int) -> dict[str, Any]:
        """Trains; returns `TranslationTask.scores`, and across: bytes that all ranks sent to other nodes."""
        keras.utils.clear_session()
        options, task = self._translated.options(seed), self._translated.task
        size = self._nodes * self._local
        own = [translation.training_batches(options, task, rank, size) for rank in range(size)]
        keras.utils.set_random_seed(arguments.seed_of(options, 0))  # the weights that rank 0 broadcasts
        model = translation.make_model(options, task.vocabulary)
        model.compile("sgd", translation.smoothed_crossentropy(options))
        steps = options.epochs * own[0].steps
        flat = FlatModel(model, arguments.recipe(options, steps).sends_all)
        gradient = _gradient(flat)

        def make_optimizer(telemetry: hvd.Telemetry) -> Any:
            rate = translation.make_schedule(options, own[0])
            return arguments.optimizer(options, rate, steps, telemetry=telemetry)

        everyone = threads.grids(size, self._local, in_order=False)
        ranks = [Rank(grid, flat.packed(), make_optimizer) for grid in everyone]
        validation, test = translation.evaluations(options, task, model)
        threads.run_on(everyone, lambda grid: ranks[grid.world.rank].agree())
        for each in ranks:
            each.compile(gradient, BATCH)
        lines = []
        for epoch in range(options.epochs):

            def train(grid: Grid, epoch: int = epoch) -> None:
                rank = grid.world.rank
                ranks[rank].train(epoch, map(_weighted, own[rank].epoch(epoch)))
                ranks[rank].consolidate()

            threads.run_on(everyone, train)
            flat.assign([each.value for each in ranks[0].weights])
            lines.append(validation())
            if not math.isfinite(lines[-1]["loss"]):
                raise ArithmeticError(
                    f"The loss is {lines[-1]['loss']}: take a lower rate than {options.learning_rate}."
                )
        outcome = translation.Outcome(lines, test(), None, translation.digest(model))
        across = sum(each.telemetry.total_bytes_across for each in ranks)
        return {**TranslationTask.scores(outcome), "across": across}


def _gradient(flat: FlatModel) -> Callable[..., Sequence[tf.Tensor]]:
    """Compiles a function that returns the gradient of the weights for a batch."""
    model = flat.model
    others = [each.value for each in model.non_trainable_variables]

    def gradient(vectors, source, target, labels, weights):
        def loss(values):
            told, _ = model.stateless_call(values, others, (source, target), training=True)
            return model.compute_loss((source, target), labels, told, weights)

        return flat.gradients(vectors, loss)

    begin = [tf.TensorSpec(each.shape, tf.float32) for each in flat.packed()]
    return tf.function(gradient, autograph=False).get_concrete_function(begin, *BATCH)


def _weighted(batch: batches.Batch) -> list[tf.Tensor]:
    """A batch with the weight of each piece."""
    return [tf.constant(each) for each in (*batch, (batch.labels != PAD).astype(np.float32))]


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=pathlib.Path)
    parser.add_argument(
        "core", type=int, help="core to run on: threads that take turns in Python are faster on a single one"
    )
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})  # before TensorFlow starts threads
    tf.config.threading.set_inter_op_parallelism_threads(WAITING)
    job = json.loads(options.job.read_text())
    hvd.init(local_size=1)  # the ranks are threads
    for number, run in enumerate(job["runs"]):
        settings, cluster = type(MODELS[run["model"]])(**run["settings"]), run["cluster"]
        if not isinstance(settings, TranslationSettings):
            raise ValueError(f"Expected a model for translation, got {run['model']}: train it on real ranks.")
        translated = TranslationTask(ARMS[run["arm"]].recipe, cluster["density"], settings)
        simulation = TranslationSimulation(translated, cluster["nodes"], cluster["local"])
        began = time.perf_counter()
        result = simulation.train(run["seed"])
        keep(job, number, {**result, "ranks": "threads", "seconds": time.perf_counter() - began})


if __name__ == "__main__":
    main()
