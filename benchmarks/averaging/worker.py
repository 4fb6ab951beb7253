"""One process of the study of model averaging, which makes runs one after another; `on_cores` writes JOB.

python -m benchmarks.averaging.worker JOB
"""

from __future__ import annotations

from typing import Any

from benchmarks.averaging import threads as averaging_threads
from benchmarks.averaging.settings import ARMS, MEASURES, MODELS, Schedule, Settings
from benchmarks.averaging.tasks import task_of
from benchmarks.reporting.writing import DIGITS
from benchmarks.studies.worker import work_off


def train(run: dict[str, Any]) -> dict[str, Any]:
    """Makes a run of a job; returns its outcome."""
    return averaging_threads.train(task_of(settings_of(run)), ARMS[run["arm"]], run["ranks"], run["seed"])


def settings_of(run: dict[str, Any]) -> Settings:
    """The settings of a run of a job."""
    given = run["settings"]
    schedule = {**given["schedule"], "falls": tuple(given["schedule"]["falls"])}
    return type(MODELS[run["model"]])(**{**given, "schedule": Schedule(**schedule)})


def rounded(outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome with few digits, without the settings, which the fingerprint covers."""
    kept = {name: value for name, value in outcome.items() if name != "settings"}
    return {name: _rounded(value) for name, value in kept.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def told(outcome: dict[str, Any]) -> str:
    """A line of progress."""
    return (
        f"{outcome['model']} {outcome['arm']} {outcome['ranks']} ranks x{outcome['rate']:g} seed {outcome['seed']}: "
        f"{MEASURES[outcome['model']]} {outcome['final']:.2f}, training loss {outcome['fitted']:.3f} and "
        f"{outcome['trained']:.3f}, {outcome['seconds']:.0f} s"
    )


if __name__ == "__main__":
    work_off(__doc__, train, rounded, told)
