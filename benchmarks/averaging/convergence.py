"""What model averaging loses in accuracy if messages are lost (RPS, Yu et al. 2019, section 6; Fig. 2 and 3).

Two models are trained: a small ResNet on crops of photographs, and an LSTM that classifies messages by the program they
come from. Both use plain SGD without momentum or regularisation, a warm-up, and a rate linear in the number of ranks
that falls to a tenth after half and after three quarters of the epochs. Ranks are threads of one process
(threads.py), each with the library's own optimizer around Keras's, over a transport that loses blocks at
random. Arms are model averaging at several arrival rates, averaging of gradients, owners that do not rotate, as
published, and averaging in every 8th step (settings.py).

With the same seed all arms start from the same weights and see the same samples with the same noise in the same order;
the seed also determines the losses of messages. Differences from 100% are therefore paired by seed, with Student's 95%
interval.

All arms of a model share one learning rate: the first seed is trained without loss at each of --rates, by the fewest
ranks, and the rate with the best validation scores in the last epochs is taken.

The study is a queue. Each finished run is a line of benchmarks/results/averaging_runs.jsonl, and is not repeated as
long as its arm, settings and sources are the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.averaging import data as averaging_data
from benchmarks.averaging import report as reports
from benchmarks.averaging import runs as queue
from benchmarks.averaging.runs import Outcomes, Run
from benchmarks.averaging.settings import ARMS, BASE, MODELS, RANKS, TRAINED, MessageSettings
from benchmarks.averaging.tasks import programs_of
from benchmarks.dropping.report import best_rate
from benchmarks.reporting.report import Section
from benchmarks.studies.paired import STUDENT, rates_of
from benchmarks.studies.store import Make, finished, load

SEEDS = 3
RATES = "1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this question."""
    group = parser.add_argument_group("convergence")
    group.add_argument("--models", default=",".join(TRAINED), help=f"from {','.join(MODELS)} (default: %(default)s)")
    group.add_argument("--arms", default=",".join(ARMS), help=f"from {','.join(ARMS)} (default: all)")
    group.add_argument("--ranks", default=",".join(map(str, RANKS)), help="numbers of ranks (default: %(default)s)")
    group.add_argument(
        "--seeds",
        type=int,
        default=SEEDS,
        help="number to run; the report has all finished ones (default: %(default)s)",
    )
    group.add_argument(
        "--rates", default=RATES, help="grid, in units of the model's learning rate (default: %(default)s)"
    )
    group.add_argument("--epochs", type=int, default=0, help="number of epochs (default: the model's)")
    group.add_argument("--finished", action="store_true", help="report on the finished runs without making new ones")
    group.add_argument(
        "--store", type=pathlib.Path, default=queue.STORE, help="file of finished runs (default: %(default)s)"
    )


def problem(options: argparse.Namespace) -> str | None:
    """Why the options are invalid; None if they are valid."""
    for name, known in {"models": list(MODELS), "arms": list(ARMS)}.items():
        if not set(getattr(options, name).split(",")) <= set(known):
            return f"expected {name} from {', '.join(known)}, got {getattr(options, name)}"
    if not all(each.isdigit() and int(each) > 1 for each in options.ranks.split(",")):
        return f"expected numbers of ranks of at least 2, got {options.ranks}"
    if not 1 <= options.seeds <= len(STUDENT):
        return f"expected 1 to {len(STUDENT)} seeds, got {options.seeds}"
    return None


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Section:
    """Makes the runs that are not finished, and reports on all."""
    models, arms = options.models.split(","), [arm for arm in ARMS if arm in options.arms.split(",")]
    study = Study(
        options.store,
        options.epochs,
        [float(rate) for rate in options.rates.split(",")],
        range(options.seeds),
        [int(ranks) for ranks in options.ranks.split(",")],
        None if options.finished else queue.make,
    )
    outcomes, tried = study.outcomes(models, arms)
    say(f"{sum(outcome['seconds'] for outcome in outcomes.values()) / 60:.0f} minutes of training")
    return reports.summarise(outcomes, {model: about(model, tried[model], options.epochs) for model in models})


@dataclasses.dataclass(frozen=True)
class Study:
    """Settings of a study, except models and arms.

    Attributes:
        store: file of finished runs.
        epochs: replaces the models' own numbers; 0 keeps them.
        rates: the grid of learning rates.
        seeds: number of seeds of each arm; the first one tries all rates.
        ranks: numbers of ranks; the smallest tries all rates.
        make: makes runs, as `averaging/runs.make`; None uses only those in the store.
    """

    store: pathlib.Path
    epochs: int
    rates: Sequence[float]
    seeds: Sequence[int]
    ranks: Sequence[int]
    make: Make | None

    def outcomes(self, models: Sequence[str], arms: Sequence[str]) -> tuple[Outcomes, dict[str, list[float]]]:
        """The outcomes of the arms at each model's best learning rate, and the rates that were tried for it.

        Makes the runs that are missing in the store; further seeds that it has are included.
        """
        fewest = min(self.ranks)
        searched = [
            Run(model, BASE, fewest, rate, self.seeds[0], self.epochs) for model in models for rate in self.rates
        ]
        found = finished(searched, self.store, self.make) if len(self.rates) > 1 else {}
        tried = {model: rates_of(found, model, BASE) for model in models}
        best = {model: best_rate(found, model, BASE) if tried[model] else self.rates[0] for model in models}

        def runs(seeds: Iterable[int]) -> list[Run]:
            order = itertools.product(models, arms, self.ranks, seeds)
            return [Run(model, arm, ranks, best[model], seed, self.epochs) for model, arm, ranks, seed in order]

        finished(runs(self.seeds), self.store, self.make)
        return load(self.store, runs(range(len(STUDENT)))), tried


def about(model: str, tried: Sequence[float], epochs: int) -> list[str]:
    """Sentences on a model, printed with its table."""
    settings = queue.at(MODELS[model], 1.0, epochs)
    told = []
    if isinstance(settings, MessageSettings):
        data = programs_of(settings)
        beside = averaging_data.regression(data, settings.vocabulary)
        told += [
            f"{data}.",
            f"A logistic regression on bags of pieces tells {beside.score:.2f}% of the test, with a loss of "
            f"{beside.loss:.3f}.",
        ]
    if tried:
        told.append(f"The learning rate is the best of {', '.join(f'x {rate:g}' for rate in tried)}, by one seed.")
    return [*told, f"Settings, the same for all arms: {_listed(dataclasses.asdict(settings))}."]


def _listed(settings: Mapping[str, object]) -> str:
    schedule = settings["schedule"]
    assert isinstance(schedule, dict)
    own = {name: value for name, value in settings.items() if name != "schedule"}
    return ", ".join(f"{name} {value}" for name, value in {**schedule, **own}.items())


draw = reports.draw
