"""What one rank does for bench_convergence.py: python -m benchmarks.convergence.rank JOB.

JOB is a JSON file: {"store": where rank 0 adds finished runs, "runs": [{the fields of `runs.Run`,
"settings": those of its model, "fingerprint"}, ...]}, all for one cluster. Consecutive runs on images that differ only
in their seeds share one graph: weights, the optimizer's slots and the state of the exchange are reset, so that a run
does not depend on those before it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from typing import Any

import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.convergence import tasks as convergence_tasks
from benchmarks.convergence.settings import MEASURES
from benchmarks.exchange.rank import forget
from benchmarks.studies import store


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=pathlib.Path)
    job = json.loads(parser.parse_args().job.read_text())
    tf.get_logger().setLevel("ERROR")
    hvd.init(local_size=job["runs"][0]["cluster"]["local"])
    learner, made_for = None, None
    for number, run in enumerate(job["runs"]):
        if made_for != (run["model"], run["arm"], run["settings"]):
            learner = None
            forget()
            learner = convergence_tasks.make(run["model"], run["arm"], run["cluster"]["density"], run["settings"])
            made_for = (run["model"], run["arm"], run["settings"])
        began = time.perf_counter()
        result = learner.train(run["seed"])
        across = hvd.topology.world().allreduce(tf.constant(result["across"], tf.int64), "sum", "convergence.across")
        if hvd.rank() == 0:
            keep(job, number, {**result, "across": int(across), "seconds": time.perf_counter() - began})


def keep(job: dict[str, Any], number: int, result: dict[str, Any]) -> None:
    """Adds the result of one of a job's runs to its store, and prints it."""
    outcome = {**job["runs"][number], **result}
    store.append(pathlib.Path(job["store"]), rounded(outcome))
    print(f"> [{number + 1}/{len(job['runs'])}] {told(outcome)}", flush=True)


def rounded(outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome with four decimals, curves with two, without the settings, which the fingerprint covers."""
    kept = {name: value for name, value in outcome.items() if name != "settings"}
    return {
        name: round(value, 4)
        if isinstance(value, float)
        else [round(each, 2) for each in value]
        if isinstance(value, list)
        else value
        for name, value in kept.items()
    }


def told(outcome: dict[str, Any]) -> str:
    """A line of progress."""
    return (
        f"{outcome['model']} {outcome['arm']} x{outcome['rate']:g} seed {outcome['seed']}: "
        f"{MEASURES[outcome['model']]} {outcome['final']:.2f}, loss {outcome['loss']:.3f}, "
        f"{outcome['across'] / 1e6:.1f} MB between nodes, {outcome['seconds']:.0f} s"
    )


if __name__ == "__main__":
    main()
