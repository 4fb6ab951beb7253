"""Trains the recommender with embedding tables whose rows are sharded over all ranks: hvd.pipeline.ShardedTables.

    horovodrun -np 4 python -m examples.sharded_recommender --recipe "dct(sparsity=0.99)"

All other options are those of examples/recommender.py. The recipe exchanges the gradients of the perceptrons, but not
of the tables: each rank asks the others for the rows that its samples look up, and sends back their gradients.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

import hvd_sparse as hvd
from examples import recommender
from examples.recommenders.dlrm import BOTTOM
from examples.recommenders.scores import Scores
from examples.recommenders.tables import Task
from examples.training import arguments, monitor, rates


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of `recommender.parse` and how rows travel, from the command line or from `words`."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--row-sparsity", type=float, default=0.0, help="share of each embedding that is not sent")
    made.add_argument(
        "--row-dtype",
        default="float32",
        help="data type for sending: float32, float16 or bfloat16 (default: %(default)s)",
    )
    own, others = made.parse_known_args(words)
    return argparse.Namespace(**vars(recommender.parse(others)), **vars(own))


def make_model(options: argparse.Namespace, task: Task) -> tuple[keras.Model, hvd.pipeline.ShardedTables]:
    """The model of `recommender.make_model` with sharded tables, and these tables."""
    model = recommender.make_model(options, task._replace(sizes=(1,) * len(task.sizes)))  # never holds whole tables
    tables = hvd.pipeline.ShardedTables(
        task.sizes, BOTTOM[-1], options.row_sparsity, options.row_dtype, seed=options.seed, name="tables"
    )
    inputs = [keras.Input(each.shape[1:], dtype=each.dtype, name=each.name) for each in model.inputs]
    vectors = tables(inputs[1])
    order = {f"table_{number}": number - 1 for number in range(1, len(task.sizes) + 1)}

    def called(layer: Any, *given: Any, **how: Any) -> Any:
        return vectors[:, order[layer.name]] if layer.name in order else layer(*given, **how)

    return keras.models.clone_model(model, inputs, clone_function=lambda own: own, call_function=called), tables


def train(options: argparse.Namespace, task: Task | None = None, **exchange: Any) -> recommender.Outcome:
    """Trains one model from the start, or from the newest checkpoint of the same number of ranks; a collective, with
    the arguments of `recommender.train`. The digest in `Outcome` covers the whole tables and all replicated weights."""
    arguments.begin(options)
    task = recommender.prepare(options) if task is None else task
    stream = recommender.Stream(options, task)
    model, tables = make_model(options, task)
    schedule = rates.make(options, [rates.Leg(options.epochs, stream.steps)])
    steps = options.epochs * stream.steps
    model.compile(
        arguments.optimizer(options, schedule, steps, local_layers=[tables], **exchange),
        keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=options.label_smoothing),
    )
    arguments.agree(model)
    validation, test = (Scores(model, rows) for rows in (task.validation, task.test))
    watch = monitor.Monitor(lambda _: validation(), monitor.log_path(options), options.target, epochs=options.epochs)
    shown = [*monitor.callbacks(options, watch), stream, rates.StepFollowsEpoch(schedule)]
    model.fit(stream.dataset(), epochs=options.epochs, callbacks=shown, shuffle=False, verbose=0)
    return recommender.Outcome(watch.lines, test(), digest(model, tables))


def digest(model: keras.Model, tables: hvd.pipeline.ShardedTables) -> str:
    """SHA-256 of the weights; a collective."""
    alike = [each.numpy() for each in model.weights if each is not tables.shard]
    return hashlib.sha256(
        b"".join(np.ascontiguousarray(each).tobytes() for each in [*alike, *tables.read()])
    ).hexdigest()


def main() -> None:
    """Trains, and prints the scores on the test rows."""
    outcome = train(parse())
    if hvd.rank() == 0:
        print(f"test: {', '.join(f'{name} {value:.5g}' for name, value in outcome.test.items())}", flush=True)


if __name__ == "__main__":
    main()
