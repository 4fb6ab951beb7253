"""Common code of the processes that `jobs.on_cores` starts: a job is a list of runs, done one by one."""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.studies.store import append

Outcome = dict[str, Any]


def work_off(
    description: str | None,
    train: Callable[[dict[str, Any]], Outcome],
    rounded: Callable[[Outcome], Outcome],
    told: Callable[[Outcome], str],
) -> None:
    """The command of such a process: does the runs of JOB, stores each one when it has ended, and reports progress.

    Args:
        description: the description of the command.
        train: does one run of the job.
        rounded: rounds a run with its outcome for the store.
        told: formats a line of progress about them.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=pathlib.Path)
    job = json.loads(parser.parse_args().job.read_text())
    tf.get_logger().setLevel("ERROR")
    hvd.init(local_size=1)  # ranks are threads, or simulated
    for number, run in enumerate(job["runs"]):
        began = time.perf_counter()
        outcome = {**run, **train(run)}
        outcome["seconds"] = time.perf_counter() - began
        append(pathlib.Path(job["store"]), rounded(outcome))
        print(f"> [{number + 1}/{len(job['runs'])}] {told(outcome)}", flush=True)
