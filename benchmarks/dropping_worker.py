"""One process of bench_dropping.py, which makes runs one after another: python -m benchmarks.dropping_worker JOB.

JOB is a JSON file: {"store": where finished runs are added, "runs": [{the fields of `dropping_runs.Run`, "settings":
those of its model, "fingerprint"}, ...]}.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import time
from typing import Any

import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.convergence_rank import rounded
from benchmarks.convergence_runs import append
from benchmarks.dropping_settings import ARMS, MEASURES, ImageSettings, SentenceSettings, Timing
from benchmarks.dropping_tasks import ImageTask, Task, train
from benchmarks.dropping_translation import SentenceTask


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=pathlib.Path)
    job = json.loads(parser.parse_args().job.read_text())
    tf.get_logger().setLevel("ERROR")
    hvd.init(local_size=1)  # the clients are simulated
    for number, run in enumerate(job["runs"]):
        began = time.perf_counter()
        outcome = {**run, **train(task_of(run), ARMS[run["arm"]], run["seed"])}
        outcome["seconds"] = time.perf_counter() - began
        append(pathlib.Path(job["store"]), rounded(outcome))
        print(f"> [{number + 1}/{len(job['runs'])}] {told(outcome)}", flush=True)


def task_of(run: dict[str, Any]) -> Task:
    """What a run learns, made where another run has not had the same."""
    settings = {**run["settings"], "timing": Timing(**run["settings"]["timing"])}
    if run["model"] == "lstm":
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
    main()
