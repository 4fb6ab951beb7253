"""What one rank does for bench_convergence.py: python -m benchmarks.convergence_rank JOB.

JOB is a JSON file: {"local": ranks a node, "folder": where results go, "density": of sparse recipes, "runs": [{"model",
"recipe", "seed"}, ...], "settings": {model: what differs from its own}, "fingerprints": {model: of its runs}}. Rank 0
writes each finished run as one file into the folder, by temporary name and rename. Runs of one model for images and one
recipe share one graph: weights, the optimizer's slots and all that the exchange keeps are put back to the start, so
that a run does not depend on those before it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from typing import Any

import tensorflow as tf

import hvd_sparse as hvd
from benchmarks import convergence_tasks
from benchmarks.convergence_settings import MEASURES
from benchmarks.exchange_rank import forget, write_json


def file_of(folder: pathlib.Path, run: dict[str, Any]) -> pathlib.Path:
    """Where the result of a run lies."""
    return folder / f"{run['model']}-{run['recipe']}-{run['seed']}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=pathlib.Path)
    job = json.loads(parser.parse_args().job.read_text())
    tf.get_logger().setLevel("ERROR")
    hvd.init(local_size=job["local"])
    folder = pathlib.Path(job["folder"])
    learner, made_for = None, None
    for number, run in enumerate(job["runs"]):
        if made_for != (run["model"], run["recipe"]):
            learner = None
            forget()
            changed = job["settings"].get(run["model"], {})
            learner = convergence_tasks.make(run["model"], run["recipe"], job["density"], changed)
            made_for = (run["model"], run["recipe"])
        began = time.perf_counter()
        result = learner.train(run["seed"])
        if hvd.rank() == 0:
            seconds = time.perf_counter() - began
            write_json(
                file_of(folder, run),
                {**run, **result, "seconds": seconds, "fingerprint": job["fingerprints"][run["model"]]},
            )
            print(
                f"> [{number + 1}/{len(job['runs'])}] {run['model']} {run['recipe']:8s} seed {run['seed']}: "
                f"{MEASURES[run['model']]} {result['final']:.2f}, {seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
