"""Trainings of the convergence study with the ranks as threads of one process, which takes less time.

    python -m benchmarks.convergence_simulation JOB

JOB is that of convergence_rank.py, with models for translation alone; finished runs go to the same store.

Four processes on two cores spend most of a step waiting for each other; threads that meet in memory do not. What runs
is the library's own: every rank has a distributed Keras optimizer, its exchange, its recipe's state. Two things differ:
a collective hands arrays over (tests/threads.py), and the variables of the model lie in one flat variable for each
bucket of the exchange, which for optimizers that treat each element alone changes no bit and saves most of eager code's
time. Gradients are computed by compiled functions, so that all cores work. Evaluation is that of one rank with all.

A graph of TensorFlow divides by a constant by multiplying with its reciprocal, and eager code does not. So an exchange
that takes over momentum (`recommended`) has other last bits here than in real ranks; `torus2d` and `updates` have not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks import convergence_runs
from benchmarks.convergence_rank import rounded, told
from benchmarks.convergence_settings import ARMS, MODELS, TranslationSettings
from benchmarks.convergence_tasks import NORMS_EVERY
from examples import translation
from examples.text import batches, decoding
from examples.text.batches import PAD, TrainingBatches
from examples.training import arguments, losses, rates
from hvd_sparse.exchange import plan
from hvd_sparse.transport.communicator import Grid
from tests import threads


class FlatModel:
    """A Keras model whose trainable weights are one vector for each bucket of an exchange.

    Args:
        model: built.
        sends_all: whether the recipe sends all of each gradient, by which buckets go.
    """

    def __init__(self, model: keras.Model, sends_all: bool):
        self.model = model
        shapes = {str(number): tuple(each.shape) for number, each in enumerate(model.trainable_variables)}
        zeros = {name: tf.zeros(shape) for name, shape in shapes.items()}
        self._buckets = plan.make_plan(zeros, shapes, plan.usual_bucket_bytes(zeros, shapes, sends_all)).buckets

    def packed(self) -> list[np.ndarray]:
        """The model's weights as vectors, the bucket that is exchanged first last, as gradients become ready."""
        values = {str(number): each.numpy() for number, each in enumerate(self.model.trainable_variables)}
        return [bucket.pack(values).numpy() for bucket in reversed(self._buckets)]

    def unpacked(self, vectors: Sequence[Any]) -> list[tf.Tensor]:
        """The values of the model's trainable variables, in their order."""
        values: dict[str, tf.Tensor] = {}
        for bucket, vector in zip(reversed(self._buckets), vectors, strict=True):
            values.update(bucket.unpack(tf.convert_to_tensor(vector)))
        return [values[str(number)] for number in range(len(values))]

    def assign(self, vectors: Sequence[Any]) -> None:
        """Gives the model these weights."""
        for variable, value in zip(self.model.trainable_variables, self.unpacked(vectors), strict=True):
            variable.assign(value)

    def gradients(self, vectors: Sequence[tf.Tensor], loss: Callable[[Any], tf.Tensor]) -> list[tf.Tensor]:
        """Those of a loss, which is called with the values of the trainable variables; vectors as `packed` gives."""
        values = self.unpacked(vectors)
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = loss(values)
        found = {str(number): each for number, each in enumerate(tape.gradient(result, values))}
        return [bucket.pack(found) for bucket in reversed(self._buckets)]


class CompiledRate(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule whose rates have the bits that they have in a graph, where divisions by constants are rewritten.

    Args:
        schedule: of the learning rate.
    """

    def __init__(self, schedule: keras.optimizers.schedules.LearningRateSchedule):
        self._run = tf.function(schedule, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64))

    def __call__(self, step: Any) -> Any:
        return self._run(tf.cast(step, tf.int64))


class Rank:
    """One rank: flat weights, and the distributed optimizer that moves them.

    Args:
        grid: its place among the threads.
        begin: the weights, as `FlatModel.packed` gives them.
        make_optimizer: makes a distributed one, not built, from telemetry.
    """

    def __init__(self, grid: Grid, begin: Sequence[np.ndarray], make_optimizer: Callable[[hvd.Telemetry], Any]):
        self.telemetry = hvd.Telemetry(norms_every=NORMS_EVERY)
        self.optimizer = make_optimizer(self.telemetry)
        self.optimizer.exchange.grid = lambda: grid
        self.weights = [keras.Variable(each, name=f"bucket{number}") for number, each in enumerate(begin)]
        self.optimizer.build(self.weights)

    def agree(self) -> None:
        """Exchanges zeros once, as `examples.training.arguments.agree`."""
        self.optimizer.exchange.set_epoch(0)
        self.optimizer.exchange([keras.ops.zeros_like(each) for each in self.weights], self.weights)

    def train(self, epoch: int, steps: Iterable[Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]]]) -> None:
        """Takes steps, each given by what makes a gradient of the weights."""
        self.optimizer.exchange.set_epoch(epoch)
        for gradient in steps:
            with hvd.looking_ahead(self.optimizer):
                gradients = gradient([each.value.read_value() for each in self.weights])
            self.optimizer.apply(list(gradients), self.weights)


class TranslationSimulation:
    """`convergence_tasks.TranslationLearner` among threads.

    Args:
        recipe: of the exchange, as the script takes it.
        density: of recipes that take one.
        settings: the same for all recipes.
        nodes: how many.
        local: ranks of each.

    Raises:
        ValueError: where the model drops features, which each rank draws for itself.
    """

    def __init__(self, recipe: str, density: float, settings: TranslationSettings, nodes: int, local: int):
        words = [*settings.options, "--epochs", str(settings.epochs), "--recipe", recipe, "--density", str(density)]
        options = translation.parse(words)
        if options.dropout:
            raise ValueError(f"Expected a model without dropout, got {options.dropout}: train it on real ranks.")
        self._words = [*words, "--learning-rate", str(settings.rate * options.learning_rate)]
        self._nodes, self._local = nodes, local
        self._task = translation.prepare(options)

    def train(self, seed: int) -> dict[str, Any]:
        """Trains from the start; see `TranslationLearner.train`. Of the curve there is the end alone."""
        keras.utils.clear_session()
        options = translation.parse([*self._words, "--seed", str(seed)])
        size = self._nodes * self._local
        own = [
            TrainingBatches(
                self._task.train, batches.boundaries(options.longest), options.batch_size, rank, size, options.seed
            )
            for rank in range(size)
        ]
        keras.utils.set_random_seed(options.seed * 1_000)  # rank 0's, as `arguments.begin` has it
        model = translation.make_model(options, self._task.vocabulary)
        model.compile("sgd", losses.SmoothedCrossentropy(options.label_smoothing, reduction="mean_with_sample_weight"))
        steps = options.epochs * own[0].steps
        flat = FlatModel(model, arguments.recipe(options, steps).sends_all)
        gradient = self._compiled(flat)

        def make_optimizer(telemetry: hvd.Telemetry) -> Any:
            schedule = CompiledRate(rates.make(options, [rates.Leg(options.epochs, own[0].steps)]))
            return arguments.optimizer(options, schedule, steps, telemetry=telemetry)

        everyone = threads.grids(size, self._local)
        ranks = [Rank(grid, flat.packed(), make_optimizer) for grid in everyone]
        threads.run_on(everyone, lambda grid: ranks[grid.world.rank].agree())
        for epoch in range(options.epochs):

            def train(grid: Grid, epoch: int = epoch) -> None:
                given = own[grid.world.rank].epoch(epoch)
                ranks[grid.world.rank].train(epoch, (gradient(batch) for batch in given))

            threads.run_on(everyone, train)
        flat.assign([each.value for each in ranks[0].weights])
        return {**self._evaluated(options, model), "across": sum(each.telemetry.total_bytes_across for each in ranks)}

    def _compiled(self, flat: FlatModel) -> Callable[[batches.Batch], Any]:
        """Makes of a batch what makes its gradient."""
        model = flat.model
        others = [each.value for each in model.non_trainable_variables]

        def gradient(vectors, source, target, labels, weights):
            def loss(values):
                told, _ = model.stateless_call(values, others, (source, target), training=True)
                return model.compute_loss((source, target), labels, told, weights)

            return flat.gradients(vectors, loss)

        begin = [tf.TensorSpec(each.shape, tf.float32) for each in flat.packed()]
        tokens, weights = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None], tf.float32)
        run = tf.function(gradient, autograph=False).get_concrete_function(begin, *[tokens] * 3, weights)

        def of(batch: batches.Batch) -> Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]]:
            weights = (batch.labels != PAD).astype(np.float32)
            given = [tf.constant(each) for each in (*batch, weights)]
            return lambda vectors: run(list(vectors), *given)

        return of

    def _evaluated(self, options: Any, model: keras.Model) -> dict[str, Any]:
        task = self._task
        greedy = decoding.Decoder(model, further=options.further)
        validation = translation.Evaluation(
            model, task.validation, task.corpus.validation, task.vocabulary, greedy, 1
        )()
        beam = greedy if options.beams == 1 else decoding.Decoder(model, options.beams, further=options.further)
        test = translation.Evaluation(model, task.test, task.corpus.test, task.vocabulary, beam, options.beams)()
        if not math.isfinite(validation["loss"]):
            raise ArithmeticError(f"The loss is {validation['loss']}: take a lower rate than {options.learning_rate}.")
        weights = b"".join(np.ascontiguousarray(weight).tobytes() for weight in model.get_weights())
        return {
            "final": test["bleu"],
            "top5": 100.0 * test["top5"],
            "loss": test["loss"],
            "curve": [validation["bleu"]],
            "error": validation["loss"],
            "weights": hashlib.sha256(weights).hexdigest()[:16],
        }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=pathlib.Path)
    job = json.loads(parser.parse_args().job.read_text())
    hvd.init(local_size=1)  # the ranks are threads
    for number, run in enumerate(job["runs"]):
        settings, cluster = type(MODELS[run["model"]])(**run["settings"]), run["cluster"]
        if not isinstance(settings, TranslationSettings):
            raise ValueError(f"Expected a model for translation, got {run['model']}: train it on real ranks.")
        recipe, density = ARMS[run["arm"]].recipe, cluster["density"]
        simulation = TranslationSimulation(recipe, density, settings, cluster["nodes"], cluster["local"])
        began = time.perf_counter()
        outcome = {**run, **simulation.train(run["seed"]), "ranks": "threads", "seconds": time.perf_counter() - began}
        convergence_runs.append(pathlib.Path(job["store"]), rounded(outcome))
        print(f"> [{number + 1}/{len(job['runs'])}] {told(outcome)}", flush=True)


if __name__ == "__main__":
    main()
