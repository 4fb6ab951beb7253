"""Trains DLRM, a recommender (Naumov et al. 2019), in the size of Gupta et al. 2021 (3.1), on any number of ranks.

    horovodrun -np 4 python -m examples.recommender --recipe hitopk --density 0.01

Without files it trains on data that any Debian or Ubuntu machine has after `apt-get update`, the package index: the
model predicts which dependency was left out of a package's description (examples/recommenders/packages.py). To train on
Criteo's click logs:

    horovodrun -np 4 python -m examples.recommender --criteo train.txt

These are divided by days: six for training, the last one for validation and test. --batch-size is the number of rows
per rank. After each epoch it reports loss, accuracy and area under the ROC curve on validation data, and at the end the
same on test data. Figures from different snapshots of an index cannot be compared; the digest is printed with them.
Training stops after one epoch, as the model overfits from then on, on Criteo's logs as well.

`python -m examples.recommenders.checks` checks for leakage, and reports which difference of test loss is significant.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from examples.recommenders import criteo, index, packages
from examples.recommenders.dlrm import BOTTOM, TOP, dlrm
from examples.recommenders.scores import Scores
from examples.recommenders.tables import Task
from examples.training import arguments, monitor, rates
from hvd_sparse.keras.callbacks.base import DistributedCallback

SPLITS = ("bottom_2", "top_2")  # Gupta et al. 2021 (3.1) split the model after these
PRESETS: dict[str, dict[str, Any]] = {
    "packages": {
        "epochs": 1,
        "batch_size": 256,
        "optimizer": "adam",
        "learning_rate": 0.01,
        "warmup_epochs": 0.3,  # a shorter one ends worse, and varies more between seeds
        "buckets": packages.USUAL.largest,
        "in_rows": False,
    },
    "criteo": {
        "epochs": 1,
        "batch_size": 128,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "schedule": "constant",
        "buckets": 2**18,
        "in_rows": True,
    },
}


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line, or `words`, with the defaults of the data that is named there."""
    usual = packages.USUAL
    made = arguments.parser(__doc__, batch="rows")
    data = made.add_argument_group("data; the machine's package index where no files are given")
    data.add_argument("--criteo", type=pathlib.Path, nargs="+", metavar="FILE", help="all days, or one file a day")
    data.add_argument("--index", type=pathlib.Path, metavar="FILE", help="a Packages file in place of the machine's")
    data.add_argument("--fold", type=int, default=usual.fold, help="which quarter of the sources is the test, 0 to 3")
    data.add_argument("--popular", type=int, default=usual.popular, help="sources that depend on a candidate, at least")
    data.add_argument("--fewest", type=int, default=usual.fewest, help="sources that have a category, at least")
    data.add_argument("--buckets", type=int, help="rows of a table of embeddings, at most")
    model = made.add_argument_group("model")
    model.add_argument("--width", type=float, default=1.0, help="times the units of hidden layers")
    model.add_argument(
        "--sparsity",
        type=float,
        default=0.0,
        help="share of activations that is dropped where the model is split (none)",
    )
    model.add_argument(
        "--split-after", nargs="+", default=SPLITS, metavar="LAYER", help="as bottom_2 and top_2, where the paper does"
    )
    model.add_argument(
        "--in-rows",
        action=argparse.BooleanOptionalAction,
        help="gradients of tables travel as the rows that a batch has, not with the recipe (Criteo: as rows)",
    )
    made.set_defaults(**PRESETS["criteo" if made.parse_known_args(words)[0].criteo else "packages"])
    return arguments.parse(made, words)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a training, the same on every rank.

    Attributes:
        lines: lines of the log, one per epoch, with "loss", "accuracy" and "auc" on validation data.
        test: the same on test data, after the last epoch.
        weights: SHA-256 of the model's weights.
    """

    lines: list[dict[str, Any]]
    test: dict[str, float]
    weights: str


def prepare(options: argparse.Namespace) -> Task:
    """Reads the data; a collective. Trainings with equal data options can share the result.

    Raises:
        ValueError: on every rank, if ranks have different data.
        RuntimeError: if the machine has no data.
    """
    if not hvd.topology.is_initialized():
        hvd.init()
    world = hvd.topology.world()
    if options.criteo:
        task = criteo.make(options.criteo, options.buckets)
    else:
        chosen = {name: getattr(options, name) for name in ("popular", "fewest", "fold")}
        task = packages.make(index.read(options.index), packages.Settings(largest=options.buckets, **chosen))
    world.agree({"rows": task.digest}, "the rows of the recommender", "recommender.rows")
    if world.rank == 0:
        counts = " + ".join(f"{len(rows):,}" for rows in task[:3])
        print(f"{task.origin}: {counts} for training, validation and test; rows {task.digest[:16]}", flush=True)
    return task


class Stream(DistributedCallback):
    """Gives `fit` the batches of the current epoch, also if a resumed run does not begin with the first one.

    Raises:
        ValueError: if there are too few rows for one step.
    """

    def __init__(self, options: argparse.Namespace, task: Task):
        super().__init__()
        self._options, self._task, self._epoch = options, task, 0
        whole = options.batch_size * hvd.size()
        self.steps = len(task.train) // whole
        if self.steps < 1:
            raise ValueError(f"Expected at least {whole:,} rows for a step of all ranks, got {len(task.train):,}.")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._epoch = epoch

    def dataset(self) -> tf.data.Dataset:
        """((numbers, categories), labels) of one epoch."""
        batch, task = self._options.batch_size, self._task
        numbers = tf.TensorSpec([batch, task.features], tf.float32)
        categories = tf.TensorSpec([batch, len(task.sizes)], tf.int32)
        specified = ((numbers, categories), tf.TensorSpec([batch], tf.float32))
        made = tf.data.Dataset.from_generator(self._given, output_signature=specified)
        return made.apply(tf.data.experimental.assert_cardinality(self.steps)).prefetch(2)

    def _given(self) -> Iterator[Any]:
        options = self._options
        for batch in self._task.train.epoch(self._epoch, options.batch_size, hvd.rank(), hvd.size(), options.seed):
            yield (batch.numbers, batch.categories), batch.labels


def make_model(options: argparse.Namespace, task: Task) -> keras.Model:
    """The model that the options name."""
    bottom, top = ([*(max(1, round(options.width * units)) for units in part[:-1]), part[-1]] for part in (BOTTOM, TOP))
    after = {name: hvd.pipeline.Threshold(options.sparsity) for name in options.split_after if options.sparsity}
    return dlrm(task.features, task.sizes, bottom, top, after, seed=options.seed)


def train(options: argparse.Namespace, task: Task | None = None, **exchange: Any) -> Outcome:
    """Trains one model from the start, or from the newest checkpoint; a collective.

    Args:
        options: as returned by `parse`.
        task: as returned by `prepare` for the same data options; prepared here if None. With the same seed all recipes
            start from the same weights and see the same batches.
        exchange: further arguments of `hvd.DistributedOptimizer`.
    """
    return trained(options, prepare(options) if task is None else task, **exchange)[1]


def trained(
    options: argparse.Namespace, task: Task, callbacks: Sequence[keras.callbacks.Callback] = (), **exchange: Any
) -> tuple[keras.Model, Outcome]:
    """Like `train`, with further callbacks; returns the model as well."""
    arguments.begin(options)
    stream = Stream(options, task)
    model = make_model(options, task)
    schedule = rates.make(options, [rates.Leg(options.epochs, stream.steps)])
    exchange = {"sparse_as_dense": not options.in_rows, **exchange}
    model.compile(
        arguments.optimizer(options, schedule, options.epochs * stream.steps, **exchange),
        keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=options.label_smoothing),
    )
    if not options.in_rows:
        arguments.agree(model)
    validation, test = (Scores(model, rows) for rows in (task.validation, task.test))
    watch = monitor.Monitor(lambda _: validation(), monitor.log_path(options), options.target, epochs=options.epochs)
    shown = [*monitor.callbacks(options, watch), stream, rates.StepFollowsEpoch(schedule), *callbacks]
    model.fit(stream.dataset(), epochs=options.epochs, callbacks=shown, shuffle=False, verbose=0)
    weights = hashlib.sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in model.get_weights()))
    return model, Outcome(watch.lines, test(), weights.hexdigest())


def main() -> None:
    """Trains, and prints the scores on test data."""
    outcome = train(parse())
    if hvd.rank() == 0:
        print(f"test: {', '.join(f'{name} {value:.5g}' for name, value in outcome.test.items())}", flush=True)


if __name__ == "__main__":
    main()
