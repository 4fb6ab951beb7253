"""What gradient dropping costs in accuracy on sharded servers (Aji and Heafield 2017, section 5).

`make bench-dropping` trains a perceptron of three layers on crops of photographs (convergence/data.py), with AdaGrad
and batches of 40 as in the paper. One process simulates 4 clients and 4 servers (simulation.py): clients and
servers run the library's own code, and simulated times make the training asynchronous. `--models lstm` trains the LSTM
of the convergence study; one training of it takes a quarter of an hour.

With the same seed all arms (settings.py) start from the same weights and see the same batches in the same
order. Differences are therefore paired by seed, with Student's 95% interval. An arm that drops nothing is trained a
second time with other computation times; the difference is noise.

Each arm, dense included, is trained at its own best learning rate from one grid. The first seeds (--searched) are
trained at each of --rates, in units of the model's own rate. All other seeds use the rate with the best validation
scores in the last evaluations. Dense training, its repetition and 99% have --seeds seeds, the other arms --fewer.
Longer trainings (`--models lstm --epochs 30`) have sections of their own once they are finished.

The study is a queue. Each finished run is a line of benchmarks/results/dropping_runs.jsonl, and is not repeated as long
as its arm, settings and sources are the same. An interrupted study can be resumed, also on another machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.dropping import report as reports
from benchmarks.dropping import runs as queue
from benchmarks.dropping.runs import Outcomes, Run
from benchmarks.dropping.settings import ARMS, FOLLOWS, LONGER, MODELS, MORE, TRAINED
from benchmarks.reporting import report, timing, writing
from benchmarks.studies.paired import STUDENT, Search

SEEDS, FEWER, SEARCHED = 8, 3, 3
RATES = "1,2,4"


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="mlp", help=f"from {','.join(MODELS)} (default: mlp)")
    parser.add_argument("--arms", default=",".join(ARMS), help=f"from {','.join(ARMS)} (default: all of each model)")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help=f"number of seeds of {', '.join(MORE)} (default: {SEEDS})"
    )
    parser.add_argument(
        "--fewer", type=int, default=FEWER, help=f"number of seeds of the other arms (default: {FEWER})"
    )
    parser.add_argument(
        "--rates", default=RATES, help=f"grid, in units of the model's learning rate (default: {RATES})"
    )
    parser.add_argument(
        "--searched", type=int, default=SEARCHED, help=f"number of seeds that try all rates (default: {SEARCHED})"
    )
    parser.add_argument("--epochs", type=int, default=0, help="number of epochs (default: the model's)")
    parser.add_argument("--finished", action="store_true", help="report on the finished runs without making new ones")
    parser.add_argument(
        "--store", type=pathlib.Path, default=queue.STORE, help="file of finished runs (default: %(default)s)"
    )
    parser.add_argument("--dry", action="store_true", help="write no report")
    options = parser.parse_args()
    models, arms = options.models.split(","), options.arms.split(",")
    if not set(models) <= set(MODELS):
        parser.error(f"expected models from {', '.join(MODELS)}, got {options.models}")
    asked = {model: [arm for arm in TRAINED[model] if arm in arms] for model in models}
    if not set(arms) <= set(ARMS) or not all(asked.values()):
        parser.error(f"expected arms from {', '.join(ARMS)}, at least one for each model, got {options.arms}")
    if not 1 <= options.searched <= options.fewer <= options.seeds <= len(STUDENT):
        parser.error(
            f"expected 1 <= --searched <= --fewer <= --seeds <= {len(STUDENT)}, got {options.searched}, "
            f"{options.fewer} and {options.seeds}"
        )
    rates = [float(rate) for rate in options.rates.split(",")]
    seeds = {arm: options.seeds if arm in MORE else options.fewer for arm in arms}
    make = None if options.finished else queue.make
    study = Study(options.store, options.epochs, rates, seeds, options.searched, make)
    outcomes, sections = answers(study, asked)
    if not study.epochs:
        for longer in longer_ones(study, models):
            found, told = answers(longer, {model: asked[model] for model in models if longer.epochs in LONGER[model]})
            outcomes |= found
            sections += told
    about = {
        "command": report.command("dropping", sys.argv[1:]),
        "settings": {model: dataclasses.asdict(MODELS[model]) for model in models},
        "minutes": sum(outcome["seconds"] for outcome in outcomes.values()) / 60,
    }
    finish(sections, about, options.dry)


@dataclasses.dataclass(frozen=True)
class Study:
    """Settings of a study, except models and arms.

    Attributes:
        store: file of finished runs.
        epochs: replaces the models' own numbers; 0 keeps them.
        rates: the grid of learning rates.
        seeds: number of seeds of each arm.
        searched: number of seeds that try all rates.
        make: makes runs, as `dropping/runs.make`; None uses only those in the store.
    """

    store: pathlib.Path
    epochs: int
    rates: Sequence[float]
    seeds: Mapping[str, int]
    searched: int
    make: Callable[[Sequence[Run], pathlib.Path], None] | None

    def outcomes(self, asked: Mapping[str, Sequence[str]]) -> tuple[Outcomes, dict[str, dict[str, list[float]]]]:
        """The outcomes of each model's arms at their best learning rates, and the rates tried by model and arm.

        Makes the runs that are missing in the store.
        """
        search = Search(
            store=self.store,
            make=self.make,
            rates=self.rates,
            searched=self.searched,
            seeds=self.seeds.__getitem__,
            follows=FOLLOWS,
            run=self._run,
            best=reports.best_rate,
        )
        return search.outcomes(asked)

    def _run(self, model: str, arm: str, rate: float, seed: int) -> Run:
        return Run(model, arm, rate, seed, self.epochs)


def answers(study: Study, asked: Mapping[str, Sequence[str]]) -> tuple[Outcomes, list[reports.Section]]:
    """The outcomes of a study of models and their arms, and the answers to the questions that it can answer."""
    outcomes, tried = study.outcomes(asked)
    sections = [
        reports.summarise(outcomes, model, question, tried[model], study.epochs)
        for model in asked
        for question in reports.answered(outcomes, model)
    ]
    return outcomes, sections


def longer_ones(study: Study, models: Sequence[str]) -> list[Study]:
    """The same study of longer trainings of these models, which only the store has."""
    epochs = sorted({each for model in models for each in LONGER[model]})
    return [dataclasses.replace(study, epochs=each, make=None) for each in epochs]


def finish(sections: Sequence[reports.Section], about: dict[str, Any], dry: bool) -> None:
    """Prints the report, and writes it unless this is dry."""
    text = reports.render(sections, about)
    print(text)
    if dry:
        return
    data: dict[str, Any] = {"machine": timing.machine(), "about": about}
    for section in sections:
        verdicts = [verdict._asdict() for verdict in section.verdicts]
        data[section.title] = {"verdicts": verdicts, "figures": section.figures}
    stem = writing.write_results("dropping", data, text)
    reports.draw(sections, f"{stem}.png")
    print(f"Written to {stem}.json, .md and .png")


if __name__ == "__main__":
    main()
