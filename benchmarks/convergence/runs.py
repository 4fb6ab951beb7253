"""The runs of the convergence study: what identifies one, where finished ones are kept, and how new ones are made.

A finished run is a line of a file in the repository, so that an interrupted study can be resumed, here or on another
machine. A run with another recipe, other settings or other sources is a different run, and has a different fingerprint.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.convergence.settings import ARMS, MEASURES, MODELS, TranslationSettings
from benchmarks.studies import jobs
from benchmarks.studies.data import digest_of_catalogues
from benchmarks.studies.sources import ROOT, fingerprint_of
from examples.training import arguments
from hvd_sparse.spec import describe

STORE = ROOT / "benchmarks" / "results" / "convergence_runs.jsonl"
TOGETHER = 4  # seeds
STEPS = 1000  # steps assumed for the fingerprint of a recipe that depends on their number
_SOURCES = {
    "BLEU": [
        "benchmarks/convergence/tasks.py",
        "examples/translation.py",
        "examples/models/transformer.py",
        "examples/models/lstm.py",
        *(f"examples/text/{name}.py" for name in ("batches", "catalogues", "corpus", "decoding", "vocabulary")),
    ],
    "top-1": [
        "benchmarks/convergence/tasks.py",
        "benchmarks/convergence/data.py",
        "examples/models/small.py",
        "examples/photographs.py",
    ],
}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The cluster of a run, and the density of its sparse arms.

    Attributes:
        nodes: number of nodes.
        local: ranks per node.
        density: density of sparse arms.
    """

    nodes: int = 2
    local: int = 2
    density: float = 0.01

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.local


@dataclasses.dataclass(frozen=True)
class Run:
    """One training of the study.

    Attributes:
        model: a key of `MODELS`.
        arm: a key of `ARMS`.
        rate: learning rate, in units of the model's own.
        seed: of weights, samples and noise.
        epochs: replaces the model's own number; 0 keeps it.
        cluster: where it runs.
    """

    model: str
    arm: str
    rate: float
    seed: int
    epochs: int = 0
    cluster: Cluster = Cluster()

    def settings(self) -> Any:
        """The model's settings with this run's rate and epochs."""
        return MODELS[self.model].at(self.rate, self.epochs)

    def fingerprint(self) -> str:
        """A hash of everything that determines the run's outcome; the recipe counts, not the name of the arm."""
        recipe = arguments.recipe_of(ARMS[self.arm].recipe, self.cluster.density, steps=STEPS)
        own = {name: value for name, value in dataclasses.asdict(self).items() if name != "arm"}
        told = [own, dataclasses.asdict(self.settings()), describe(recipe), self._data()]
        return fingerprint_of(told, _SOURCES[MEASURES[self.model]])

    def _data(self) -> str:
        """A digest of the data, which differ between machines."""
        settings = MODELS[self.model]
        return digest_of_catalogues(settings.options) if isinstance(settings, TranslationSettings) else ""

    def __str__(self) -> str:
        return f"{self.model} {self.arm} x{self.rate:g} seed {self.seed}"


Outcomes = dict[Run, dict[str, Any]]


def make(wanted: Sequence[Run], store: pathlib.Path) -> None:
    """Makes runs of one cluster one by one, on ranks that are started once; RuntimeError if they fail."""
    cluster = wanted[0].cluster
    with tempfile.TemporaryDirectory() as folder:
        jobs.launch([on_ranks(write_job(wanted, store, pathlib.Path(folder) / "job.json"), cluster)], cluster.local)


def simulate(wanted: Sequence[Run], store: pathlib.Path) -> None:
    """Makes runs of one cluster with threads as ranks, one process per core; RuntimeError if one fails."""
    ordered, cores = sorted(wanted, key=_turn), sorted(os.sched_getaffinity(0))[: len(wanted)]
    with tempfile.TemporaryDirectory() as folder:
        paths = jobs.dealt(ordered, store, pathlib.Path(folder), len(cores))
        commands = [on_threads(path, core) for path, core in zip(paths, cores, strict=True)]
        jobs.launch(commands, wanted[0].cluster.local)


def on_ranks(job: pathlib.Path, cluster: Cluster) -> list[str]:
    """The command that makes a job's runs on real ranks."""
    launcher = [sys.executable, "-m", "benchmarks.launcher", "-np", str(cluster.ranks), "--gloo"]
    ranks = [sys.executable, "-m", "benchmarks.convergence.rank", str(job)]
    return [*launcher, *ranks]


def on_threads(job: pathlib.Path, core: int) -> list[str]:
    """The command that makes a job's runs in one process, on one core."""
    return [sys.executable, "-m", "benchmarks.convergence.simulation", str(job), str(core)]


def write_job(wanted: Iterable[Run], store: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    """Writes the job file of some runs; returns its path."""
    return jobs.write(sorted(wanted, key=_turn), store, path)


def _turn(run: Run) -> tuple[Any, ...]:
    """The order of runs: a few seeds of all arms before further ones; runs that can share a graph are adjacent."""
    return list(MODELS).index(run.model), run.seed // TOGETHER, run.arm, run.rate, run.seed
