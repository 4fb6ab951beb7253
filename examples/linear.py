"""Trains linear classifiers on sparse data, as SparCML's MPI-OPT does (section 8.2): logistic regression and SVM.

    python -m examples.make_ngrams --out ngrams
    horovodrun -np 4 python -m examples.linear --train ngrams/train.svm --test ngrams/test.svm
    horovodrun -np 4 python -m examples.linear --train ngrams/train.svm --test ngrams/test.svm --exchange dense
    horovodrun -np 4 python -m examples.linear --train ngrams/train.svm --test ngrams/test.svm --asynchronous

The input is libsvm files, of which each rank reads its share of the lines. With SGD (--method sgd) the ranks sum the
gradients of large batches, 1,000 samples per rank, which are naturally sparse. With random block coordinate descent
(--method cd) they gather new values of 100 coordinates per rank and iteration, and each rank reads all lines. Nothing
is left out or quantized, so losses do not depend on --exchange: `dense` is Horovod's own all-reduce (its all-gather
for cd), the others are those of hvd.collectives. All steps are synchronous: every rank waits for the sum over all.

With --asynchronous no rank waits: each rank sends its gradient to sharded servers (hvd.servers), which apply it when it
arrives, and gets back the share --density of the weights that have changed most. Each rank's batch is a step of its
own, so a pass has as many times the steps as there are ranks. Ranks meet between passes for evaluation.

The objective is the mean loss over the samples plus l2 / 2 times the squared norm of the weights without the intercept.
After each pass over the data the script prints the objective, the loss and the accuracies, and the time of the pass
without evaluation: the slowest rank's, and the ranks' mean time in the exchange. The latter includes waiting for the
slowest rank; with --meet this is reported separately.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

import hvd_sparse as hvd
from examples.linear_models import data, exchange
from examples.linear_models.asynchronous import AsynchronousDescent
from examples.linear_models.coordinates import CoordinateDescent
from examples.linear_models.data import Data
from examples.linear_models.exchange import Exchange
from examples.linear_models.losses import LOSSES, Loss
from examples.linear_models.sgd import SCHEDULES, GradientDescent
from hvd_sparse.transport.communicator import Communicator

METHODS = {"sgd": exchange.SUMS, "cd": exchange.GATHERINGS}
SERVERS = "servers"
USUAL = {"sgd": "auto", "cd": exchange.GATHERED}
_ONLY_SGD = ("batch_size", "learning_rate", "schedule", "decay")
_ONLY_CD = ("coordinates", "iterations")
_ONLY_ASYNCHRONOUS = ("density",)
_EVERY = 10.0  # seconds between lines within a pass

Model = GradientDescent | CoordinateDescent | AsynchronousDescent


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line, or of `words`."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--train", type=Path, nargs="+", required=True, metavar="FILE", help="libsvm files")
    made.add_argument("--test", type=Path, nargs="+", default=[], metavar="FILE")
    made.add_argument("--features", type=_whole, help="number of features (default: the largest index in the files)")
    made.add_argument(
        "--loss", choices=LOSSES, default="logistic", help="hinge and squared-hinge train an SVM (default: %(default)s)"
    )
    made.add_argument("--l2", type=float, default=1e-4, help="strength of the regularisation (default: %(default)s)")
    made.add_argument("--method", choices=METHODS, default="sgd")
    made.add_argument(
        "--exchange", choices=exchange.SUMS, help="default: auto for sgd, allgather for cd, which also allows dense"
    )
    made.add_argument("--passes", type=_whole, default=10)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument(
        "--meet",
        action="store_true",
        help="synchronise ranks before each exchange, so that waiting is timed separately",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    sgd = made.add_argument_group("options of --method sgd")
    sgd.add_argument("--batch-size", type=_whole, help="samples per rank and step (default: 1,000)")
    sgd.add_argument("--learning-rate", type=float, help="default: small enough for any data")
    sgd.add_argument(
        "--schedule",
        choices=SCHEDULES,
        help="rate, rate / (1 + decay t) or rate / sqrt(1 + decay t) (default: constant)",
    )
    sgd.add_argument("--decay", type=float, help="decay of the schedule, where t counts passes (default: 1)")
    sgd.add_argument("--asynchronous", action="store_true", help="train on sharded servers instead of with --exchange")
    sgd.add_argument("--density", type=float, help="share of the weights sent to an asynchronous rank (default: 0.01)")
    descent = made.add_argument_group("options of --method cd")
    descent.add_argument("--coordinates", type=_whole, help="per rank and iteration (default: 100)")
    descent.add_argument(
        "--iterations", type=_whole, help="per pass (default: until each coordinate is drawn once, on average)"
    )
    options = made.parse_args(words)
    if options.asynchronous and (options.method == "cd" or options.exchange or options.meet):
        made.error("--asynchronous requires --method sgd, and is not valid with --exchange or --meet")
    if options.density is not None and not options.asynchronous:
        made.error("--density requires --asynchronous")
    options.exchange = SERVERS if options.asynchronous else options.exchange or USUAL[options.method]
    if options.exchange not in (*METHODS[options.method], SERVERS):
        made.error(
            f"--method {options.method} allows --exchange {', '.join(METHODS[options.method])}, got {options.exchange}"
        )
    for name in _ONLY_CD if options.method == "sgd" else _ONLY_SGD:
        if getattr(options, name) is not None:
            made.error(f"--{name.replace('_', '-')} is not valid with --method {options.method}")
    return options


def _whole(text: str) -> int:
    """Parses a whole number from 1."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text}")
    return int(text)


def make_model(
    options: argparse.Namespace, communicator: Communicator, given: Data
) -> tuple[Model, Exchange | AsynchronousDescent]:
    """The model to train, and the object that counts its exchanges; a collective."""
    chosen = {name: getattr(options, name) for name in (*_ONLY_SGD, *_ONLY_CD, *_ONLY_ASYNCHRONOUS)}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if options.asynchronous:
        renamed = {"batch" if name == "batch_size" else name: value for name, value in chosen.items()}
        loss = LOSSES[options.loss]
        servers = AsynchronousDescent(communicator, given, loss, options.l2, seed=options.seed, **renamed)
        return servers, servers
    exchanged = Exchange(options.exchange, communicator, given.features + 1, options.meet)
    common = (communicator, given, LOSSES[options.loss], exchanged, options.l2)
    if options.method == "cd":
        return CoordinateDescent(*common, seed=options.seed, **chosen), exchanged
    batch = chosen.pop("batch_size", 1_000) * communicator.size
    return GradientDescent(*common, batch, seed=options.seed, **chosen), exchanged


def evaluate(communicator: Communicator, given: Data, model: Model, loss: Loss, l2: float) -> dict[str, float]:
    """The figures of the current model over the samples of all ranks; a collective."""
    weights = model.weights()
    figures = _scored(communicator, loss, *model.training_scores())
    objective = figures["loss"] + l2 / 2 * float(weights[:-1] @ weights[:-1])
    figures = {"objective": objective, **figures}
    if given.test is not None:
        tested = _scored(communicator, loss, given.test.labels, given.test.matrix @ weights)
        figures |= {f"test_{name}": value for name, value in tested.items()}
    return figures


def _scored(communicator: Communicator, loss: Loss, labels: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    right = (scores > 0) == (labels > 0)
    own = [len(labels), float(loss.value(labels * scores).sum()), int(right.sum())]
    count, total, correct = data.sums(communicator, own, "linear.scores")
    return {"loss": total / count, "accuracy": correct / count} if count else {}


class Progress:
    """Prints a line every few seconds within a pass, on rank 0."""

    def __init__(self, communicator: Communicator, number: int, steps: int):
        self._shown, self._number, self._steps = communicator.rank == 0, number, steps
        self._last = time.perf_counter()

    def __call__(self, done: int) -> None:
        """Takes the number of steps done."""
        now = time.perf_counter()
        if self._shown and now - self._last >= _EVERY:
            print(f"pass {self._number}: {done:,} of {self._steps:,} steps", flush=True)
            self._last = now


def timed_pass(
    communicator: Communicator, model: Model, exchanged: Exchange | AsynchronousDescent, number: int
) -> dict[str, float]:
    """Trains for one pass and returns its times; a collective."""
    begun, before = time.perf_counter(), (exchanged.seconds, exchanged.waiting)
    model.run_pass(number, Progress(communicator, number + 1, model.steps))
    own = [time.perf_counter() - begun, exchanged.seconds - before[0], exchanged.waiting - before[1]]
    everyone = np.array(communicator.gather_descriptions(own, "linear.seconds"))
    seconds, communication, waiting = everyone[:, 0].max(), everyone[:, 1].mean(), everyone[:, 2].mean()
    return {"seconds": float(seconds), "communication": float(communication), "waiting": float(waiting)}


def train(options: argparse.Namespace, world: Communicator) -> dict[str, Any]:
    """Trains and returns all figures, the same on every rank; a collective.

    Raises:
        ValueError: on every rank alike, if a file cannot be read or options do not go together.
    """
    given = data.load(world, options.train, options.test, options.features, everywhere=options.method == "cd")
    model, exchanged = make_model(options, world, given)
    about = {"ranks": world.size, "samples": given.samples, "features": given.features, "nonzeros": given.nonzeros}
    about |= {name: getattr(options, name) for name in ("method", "loss", "exchange", "l2", "seed")} | model.settings
    tell = print if world.rank == 0 else _silent
    tell(", ".join(f"{name} {_figure(value)}" for name, value in about.items()), flush=True)
    passes: list[dict[str, float]] = []
    for number in range(options.passes):
        times = timed_pass(world, model, exchanged, number)
        passes.append({"pass": number + 1, **evaluate(world, given, model, LOSSES[options.loss], options.l2), **times})
        tell(", ".join(f"{name} {_figure(value)}" for name, value in passes[-1].items()), flush=True)
    digest = xxhash.xxh3_64_hexdigest(model.weights().tobytes())
    world.agree({"weights": digest}, "the weights after training", "linear.weights")
    if isinstance(model, AsynchronousDescent):
        model.finish()
    return about | {"passes": passes, "weights": digest} | averages(world, passes, exchanged)


def averages(
    communicator: Communicator, passes: list[dict[str, float]], exchanged: Exchange | AsynchronousDescent
) -> dict[str, float]:
    """Means per pass, as in SparCML's Table 2, and per exchange the entries of a rank and of the result."""
    counts = [exchanged.count, exchanged.sent, exchanged.received]
    count, sent, received = data.sums(communicator, counts, "linear.counts")
    means = {name: float(np.mean([each[name] for each in passes])) for name in ("seconds", "communication", "waiting")}
    share = means["communication"] / means["seconds"]
    return means | {"share": share, "entries": sent / count, "entries_of_all": received / count}


def table(figures: dict[str, Any]) -> str:
    """A Markdown table of all passes and of the average pass, with its communication in brackets."""
    names = list(figures["passes"][0])
    rows = [[_figure(each[name]) for name in names] for each in figures["passes"]]
    lines = [names, ["---"] * len(names), *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return (
        f"{text}\n\n{figures['ranks']} ranks, {figures['exchange']}: {figures['seconds']:.3f} s per pass "
        f"({figures['communication']:.3f} s communication, {figures['share']:.0%}); in an exchange a rank contributed "
        f"{figures['entries']:,.0f} of {figures['features'] + 1:,} entries, "
        f"the result has {figures['entries_of_all']:,.0f}"
    )


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _silent(*_: Any, **__: Any) -> None:
    pass


def main() -> None:
    """Trains with the options of the command line, prints the table, and writes the JSON."""
    options = parse()
    hvd.init()
    figures = train(options, hvd.topology.world())
    if hvd.rank() > 0:
        return
    print(table(figures))
    if options.json:
        part = options.json.with_name(f".{options.json.name}.part")
        part.write_text(json.dumps(figures, indent=1))
        part.replace(options.json)


if __name__ == "__main__":
    main()
