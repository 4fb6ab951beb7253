"""How well models train under the exchanges of CommLib (Table 2, Fig. 10), SparCML (8.3), DGC, DiLoCo and SparseLoCo.

`make bench-convergence` trains a small ResNet and a small VGG (examples/models/small.py) on crops of photographs
(data.py), and the Transformer and the LSTM of examples/translation.py on message catalogues. It uses 4
ranks as 2 nodes of 2, with the recipes of `ARMS` (settings.py); sparse ones have a density of 0.01, as in
CommLib's Fig. 7 and 8. Dense-SGD adds the same gradients as 2DTAR-SGD in another order, so the difference between the
two is noise.

With the same seed all arms start from the same weights and see the same samples with the same noise in the same order;
all settings but the learning rate are the same. Differences are therefore paired by seed, with Student's 95% interval.

Each arm, dense included, is trained at its own best learning rate from one grid. The first seeds (--searched) are
trained at each of --rates, in units of the model's own rate. All other seeds use the rate that validates best: by the
loss for translation, and by the top-1 accuracy of the last epochs for images.

With --simulated the ranks are threads of one process (simulation.py): the same bits in less time.

The study is a queue. Each finished run is a line of benchmarks/results/convergence_runs.jsonl, and is not repeated as
long as its recipe, settings and sources are the same. An interrupted study can be resumed, also on another machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.convergence import report as reports
from benchmarks.convergence import runs as queue
from benchmarks.convergence.runs import Cluster, Outcomes, Run
from benchmarks.convergence.settings import ARMS, DENSE, ELSEWHERE, MODELS, TRAINED
from benchmarks.reporting import report, timing, writing
from benchmarks.studies.paired import STUDENT, Search

SEEDS, SEARCHED = 8, 2
FOLLOWS = {"dense": "torus2d"}  # the noise of equal arms is that of equal learning rates


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help=f"from {','.join(MODELS)} (default: all)")
    parser.add_argument("--recipes", default=",".join(ARMS), help=f"from {','.join(ARMS)} (default: all of each model)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"number of seeds (default: {SEEDS})")
    parser.add_argument(
        "--rates", default="1", help="grid of learning rates, such as 0.7,1,1.5, in units of the model's (default: 1)"
    )
    parser.add_argument(
        "--searched", type=int, default=SEARCHED, help=f"number of seeds that try all rates (default: {SEARCHED})"
    )
    parser.add_argument("--epochs", type=int, default=0, help="number of epochs (default: the model's)")
    parser.add_argument("--nodes", type=int, default=2, help="number of nodes (default: 2)")
    parser.add_argument("--local", type=int, default=2, help="ranks per node (default: 2)")
    parser.add_argument("--density", type=float, default=0.01, help="of the sparse arms (default: 0.01)")
    parser.add_argument(
        "--simulated",
        action="store_true",
        help="use threads as ranks, one process per core, which is faster; translation only",
    )
    parser.add_argument("--finished", action="store_true", help="report on the finished runs without making new ones")
    parser.add_argument(
        "--store", type=pathlib.Path, default=queue.STORE, help="file of finished runs (default: %(default)s)"
    )
    parser.add_argument("--dry", action="store_true", help="write no report")
    options = parser.parse_args()
    models, recipes = options.models.split(","), options.recipes.split(",")
    if not set(models) <= set(MODELS):
        parser.error(f"expected models from {', '.join(MODELS)}, got {options.models}")
    asked = {model: [arm for arm in TRAINED[model] if arm in recipes] for model in models}
    if not set(recipes) <= set(ARMS) or not all(asked.values()):
        parser.error(f"expected recipes from {', '.join(ARMS)}, at least one for each model, got {options.recipes}")
    if not 1 <= options.searched <= options.seeds <= len(STUDENT):
        parser.error(
            f"expected 1 <= --searched <= --seeds <= {len(STUDENT)}, got {options.searched} and {options.seeds}"
        )
    rates = [float(rate) for rate in options.rates.split(",")]
    cluster = Cluster(options.nodes, options.local, options.density)
    make = None if options.finished else queue.simulate if options.simulated else queue.make
    study = Study(options.store, cluster, options.epochs, rates, options.seeds, options.searched, make)
    outcomes, tried = study.outcomes(asked)
    about = {
        "command": report.command("convergence", sys.argv[1:]),
        "cluster": cluster,
        "settings": {model: dataclasses.asdict(MODELS[model].at(1.0, options.epochs)) for model in models},
        "minutes": sum(outcome["seconds"] for outcome in outcomes.values()) / 60,
    }
    told = [model for model in models if reports.arms_of(outcomes, model)]
    sections = [reports.summarise(outcomes, model, tried[model]) for model in told]
    usual = (options.epochs, cluster.nodes, cluster.local) == (0, Cluster().nodes, Cluster().local)
    finish(sections, about, options.dry, elsewhere(study, asked) if usual else ())


def elsewhere(study: Study, asked: Mapping[str, Sequence[str]]) -> list[reports.Section]:
    """A section for each of `ELSEWHERE` and each model with runs of it in the store, dense ones among them."""
    sections = []
    for place in ELSEWHERE:
        cluster = dataclasses.replace(study.cluster, nodes=place.nodes, local=place.local)
        there = dataclasses.replace(study, cluster=cluster, epochs=place.epochs, make=None)
        outcomes, tried = there.outcomes(asked)
        for model in (each for each in asked if DENSE in reports.arms_of(outcomes, each)):
            section = reports.summarise(outcomes, model, tried[model], place.wanted.get(model, ()))
            sections.append(section._replace(title=f"{model}, {place.name}"))
    return sections


@dataclasses.dataclass(frozen=True)
class Study:
    """Settings of a study, except models and arms.

    Attributes:
        store: file of finished runs.
        cluster: where it runs.
        epochs: replaces the models' own numbers; 0 keeps them.
        rates: the grid of learning rates.
        seeds: number of seeds.
        searched: number of seeds that try all rates.
        make: makes runs, as in `convergence_runs`; None uses only those in the store.
    """

    store: pathlib.Path
    cluster: Cluster
    epochs: int
    rates: Sequence[float]
    seeds: int
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
            seeds=lambda arm: self.seeds,
            follows=FOLLOWS,
            run=self._run,
            best=reports.best_rate,
        )
        return search.outcomes(asked)

    def _run(self, model: str, arm: str, rate: float, seed: int) -> Run:
        return Run(model, arm, rate, seed, self.epochs, self.cluster)


def finish(
    sections: Sequence[reports.Section], about: dict[str, Any], dry: bool, others: Sequence[reports.Section] = ()
) -> None:
    """Prints the report, and writes it unless this is dry; the picture leaves out `others`."""
    text = reports.render(sections, about, others)
    print(text)
    if dry:
        return
    data: dict[str, Any] = {
        "machine": timing.machine(),
        "about": {**about, "cluster": dataclasses.asdict(about["cluster"])},
    }
    for section in (*sections, *others):
        verdicts = [verdict._asdict() for verdict in section.verdicts]
        data[section.title] = {"verdicts": verdicts, "figures": section.figures}
    stem = writing.write_results("convergence", data, text)
    reports.draw(sections, f"{stem}.png")
    print(f"Written to {stem}.json, .md and .png")


if __name__ == "__main__":
    main()
