"""One process of bench_dropping.py, which makes runs one after another: python -m benchmarks.dropping.worker JOB.

JOB is a JSON file: {"store": where finished runs are added, "runs": [{the fields of `runs.Run`, "settings":
those of its model, "fingerprint"}, ...]}.
"""

from __future__ import annotations

import functools
from typing import Any

from benchmarks.convergence.rank import rounded
from benchmarks.dropping.settings import ARMS, MEASURES, ImageSettings, SentenceSettings, Timing
from benchmarks.dropping.tasks import ImageTask, Task, train
from benchmarks.dropping.translation import SentenceTask
from benchmarks.studies.worker import work_off


def outcome_of(run: dict[str, Any]) -> dict[str, Any]:
    """Makes a run of a job; returns its outcome."""
    return train(task_of(run), ARMS[run["arm"]], run["seed"])


def task_of(run: dict[str, Any]) -> Task:
    """The task of a run, reused if another run has had the same."""
    settings = {**run["settings"], "timing": Timing(**run["settings"]["timing"])}
    if "options" in settings:
        return SentenceTask(SentenceSettings(**{**settings, "options": tuple(settings["options"])}))
    return _images(ImageSettings(**settings), ARMS[run["arm"]].normalised)


@functools.lru_cache(1)
def _images(settings: ImageSettings, normalised: bool) -> ImageTask:
    return ImageTask(settings, normalised)


def told(outcome: dict[str, Any]) -> str:
    """A line of progress."""
    return (
        f"{outcome['model']} {outcome['arm']} x{outcome['rate']:g} seed {outcome['seed']}: "
        f"{MEASURES[outcome['model']]} {outcome['final']:.2f}, loss {outcome['loss']:.3f}, "
        f"{outcome['times'][-1]:.1f} simulated seconds, {outcome['seconds']:.0f} s"
    )


if __name__ == "__main__":
    work_off(__doc__, outcome_of, rounded, told)
