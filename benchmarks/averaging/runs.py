"""The runs of the study of model averaging; finished ones are kept as described in studies/store.py."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

from benchmarks.averaging import data as averaging_data
from benchmarks.averaging.settings import ARMS, BASE, MODELS, ImageSettings, MessageSettings, Settings
from benchmarks.studies.jobs import on_cores
from benchmarks.studies.sources import ROOT, fingerprint_of
from examples.text import corpus
from hvd_sparse.spec import describe

STORE = ROOT / "benchmarks" / "results" / "averaging_runs.jsonl"
FIRST = (BASE, "arrival99", "arrival95", "arrival90", "gradients99", "gradients100")  # all seeds before other arms
_COMMON = ["benchmarks/averaging/tasks.py", "benchmarks/averaging/threads.py"]
_OF_IMAGES = ["benchmarks/convergence/data.py", "examples/models/small.py", "examples/photographs.py"]
_OF_MESSAGES = [
    "benchmarks/averaging/data.py",
    *(f"examples/text/{name}.py" for name in ("catalogues", "corpus", "vocabulary")),
]


@dataclasses.dataclass(frozen=True)
class Run:
    """One training of the study.

    Attributes:
        model: a key of `MODELS`.
        arm: a key of `ARMS`.
        ranks: P.
        rate: learning rate, in units of the model's own.
        seed: of weights, samples, noise and losses.
        epochs: replaces the model's own number; 0 keeps it.
    """

    model: str
    arm: str
    ranks: int
    rate: float
    seed: int
    epochs: int = 0

    def settings(self) -> Settings:
        """The model's settings with this run's rate and epochs."""
        return at(MODELS[self.model], self.rate, self.epochs)

    def fingerprint(self) -> str:
        """A hash of everything that determines the run's outcome; what the arm does counts, not its name."""
        arm, settings = ARMS[self.arm], self.settings()
        told = [
            {"ranks": self.ranks, "seed": self.seed, "settings": dataclasses.asdict(settings)},
            [describe(arm.transport(self.seed)), arm.gradients, arm.every, arm.rotate, arm.turned],
            "" if isinstance(settings, ImageSettings) else digest_of(settings),
        ]
        return fingerprint_of(told, (*_COMMON, *(_OF_IMAGES if isinstance(settings, ImageSettings) else _OF_MESSAGES)))


def at(settings: Settings, rate: float, epochs: int) -> Settings:
    """These settings with `rate` times the learning rate, and another number of epochs if that is not 0."""
    own = settings.schedule
    schedule = dataclasses.replace(own, rate=rate * own.rate, epochs=epochs or own.epochs)
    return dataclasses.replace(settings, schedule=schedule)


def digest_of(settings: MessageSettings) -> str:
    """A digest of the messages, which differ between machines."""
    return _digest(settings.programs, settings.most, settings.held_out, settings.folder)


@functools.cache
def _digest(*given: Any) -> str:
    return corpus.digest(averaging_data.corpus_of(*given))


Outcomes = dict[Run, dict[str, Any]]


def make(wanted: Sequence[Run], store: pathlib.Path) -> None:
    """Makes runs, with one process per core; RuntimeError if one fails."""
    on_cores(sorted(wanted, key=_turn), store, "benchmarks.averaging.worker")


def _turn(run: Run) -> tuple[Any, ...]:
    """The order of runs: few ranks and the most important arms first, one seed of all arms before the next."""
    return run.ranks, run.arm not in FIRST, run.seed, list(MODELS).index(run.model), run.rate, list(ARMS).index(run.arm)
