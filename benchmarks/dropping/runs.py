"""The runs of the study of gradient dropping; finished ones are kept as described in studies/store.py."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from benchmarks.dropping.settings import ARMS, MODELS, ImageSettings, SentenceSettings
from benchmarks.studies.data import digest_of_catalogues
from benchmarks.studies.jobs import on_cores
from benchmarks.studies.sources import ROOT, fingerprint_of
from examples import translation
from hvd_sparse.spec import describe

STORE = ROOT / "benchmarks" / "results" / "dropping_runs.jsonl"
_COMMON = ["benchmarks/dropping/simulation.py", "benchmarks/dropping/tasks.py"]
_SOURCES: dict[type, list[str]] = {
    ImageSettings: ["benchmarks/convergence/data.py", "examples/photographs.py"],
    SentenceSettings: [
        "benchmarks/dropping/translation.py",
        "examples/translation.py",
        "examples/models/lstm.py",
        *(f"examples/text/{name}.py" for name in ("batches", "catalogues", "corpus", "decoding", "vocabulary")),
    ],
}


@dataclasses.dataclass(frozen=True)
class Run:
    """One training of the study.

    Attributes:
        model: a key of `MODELS`.
        arm: a key of `ARMS`.
        rate: learning rate, in units of the model's own.
        seed: of weights, samples, noise and simulated times.
        epochs: replaces the model's own number; 0 keeps it.
    """

    model: str
    arm: str
    rate: float
    seed: int
    epochs: int = 0

    def settings(self) -> Any:
        """The model's settings with this run's rate and epochs."""
        own = MODELS[self.model]
        return dataclasses.replace(own, rate=self.rate * own.rate, epochs=self.epochs or own.epochs)

    def fingerprint(self) -> str:
        """A hash of everything that determines the run's outcome; what the arm does counts, not its name."""
        arm = ARMS[self.arm]
        chosen = arm.settings()
        told = [
            {"model": self.model, "seed": self.seed, "settings": dataclasses.asdict(self.settings())},
            [describe(chosen.push), describe(chosen.pull), describe(chosen.rule)],
            [arm.normalised, arm.slowness, arm.timing, self._data()],
        ]
        return fingerprint_of(told, (*_COMMON, *_SOURCES[type(MODELS[self.model])]))

    def _data(self) -> str:
        """A digest of the data, which differ between machines."""
        settings = MODELS[self.model]
        return digest_of_catalogues(settings.options) if isinstance(settings, SentenceSettings) else ""


def options_of(model: str) -> argparse.Namespace:
    """The options of examples/translation.py for a model that translates."""
    settings = MODELS[model]
    assert isinstance(settings, SentenceSettings)
    return translation.parse(settings.options)


Outcomes = dict[Run, dict[str, Any]]


def make(wanted: Sequence[Run], store: pathlib.Path) -> None:
    """Makes runs, with one process per core; RuntimeError if one fails."""
    on_cores(sorted(wanted, key=_turn), store, "benchmarks.dropping.worker")


def _turn(run: Run) -> tuple[Any, ...]:
    """The order of runs: a seed of all arms before the next one; runs that can share a graph are adjacent."""
    return list(MODELS).index(run.model), run.seed, ARMS[run.arm].normalised, run.rate, list(ARMS).index(run.arm)
