"""Trains the DLRM, a recommender (Naumov et al. 2019), of the size that Gupta et al. 2021 (3.1) take, on any ranks.

    horovodrun -np 4 python -m examples.recommender --recipe hitopk --density 0.01

Without files it learns from what any Debian or Ubuntu machine has after `apt-get update`, the index of packages: which
dependency was left out of a package's description (examples/recommenders/packages.py). Criteo's click logs are

    horovodrun -np 4 python -m examples.recommender --criteo train.txt

and are divided by days: six for training, the last one for validation and test. --batch-size counts the rows of a rank.
After each epoch come loss, accuracy and area under the ROC curve on validation data, at the end the same of the test.
Figures of different snapshots of an index do not compare; the digest is printed with them. Learning stops after one
epoch, after which rows are learnt by heart, in Criteo's as well.

`python -m examples.recommenders.checks` looks for leakage, and tells which difference of test loss is beyond luck.
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

SPLITS = ("bottom_2", "top_2")  # behind which Gupta et al. 2021 (3.1) split the model
PRESETS: dict[str, dict[str, Any]] = {
    "packages": {
        "epochs": 1,
        "batch_size": 256,
        "optimizer": "adam",
        "learning_rate": 0.01,
        "warmup_epochs": 0.3,  # shorter ones end worse, and further apart from seed to seed
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
    """The options of the command line, or of these words, with the defaults of the data that they name."""
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
    """How a training ended; the same on every rank.

    Attributes:
        lines: of the log, one an epoch, with "loss", "accuracy" and "auc" of validation.
        test: the same of the test, after the last epoch.
        weights: SHA-256 of the model's weights.
    """

    lines: list[dict[str, Any]]
    test: dict[str, float]
    weights: str


def prepare(options: argparse.Namespace) -> Task:
    """Reads the data; a collective. May serve several trainings with equal data options.

    Raises:
        ValueError: on every rank alike where the ranks have different data.
        RuntimeError: where the machine has none.
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
    """Gives `fit` the batches of the epoch that it is in, also where that is not the first one.

    Raises:
        ValueError: where the rows do not make one step.
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
        options: of `parse`.
        task: of `prepare`, with the same data options; made where it is None. With the same seed all recipes begin with
            the same weights and see the same batches.
        exchange: further arguments of `hvd.DistributedOptimizer`.
    """
    return trained(options, prepare(options) if task is None else task, **exchange)[1]


def trained(
    options: argparse.Namespace, task: Task, callbacks: Sequence[keras.callbacks.Callback] = (), **exchange: Any
) -> tuple[keras.Model, Outcome]:
    """As `train`, with further callbacks, and the model."""
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
    """Trains, and tells how well the test's answers are told."""
    outcome = train(parse())
    if hvd.rank() == 0:
        print(f"test: {', '.join(f'{name} {value:.5g}' for name, value in outcome.test.items())}", flush=True)


if __name__ == "__main__":
    main()
