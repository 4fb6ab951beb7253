"""How accurate is a training on many nodes, by recipe? Nodes of one rank, as threads of one process.

    make bench-nodes                                                             (hours, on one core)
    python -m benchmarks nodes --nodes 16 --steps 500 --arms dense blocks        (minutes)
    python -m benchmarks nodes --model convolutions --steps 800                  (SGD with momentum)

A small model learns the characters of Python's own library, a Transformer with Adam or convolutions with SGD: the same
64 pieces a step for every number of nodes, so that more nodes have fewer each. Every rank runs the library's own
optimizer and exchange, compiled; collectives pass arrays in memory. Each finished run is a line of
benchmarks/results/nodes_runs.jsonl and is not made again. An arm's result is that of its best rate; the table says
where that is the lowest or the highest tried. Bits of one seed differ by .02 from those of another.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from matplotlib.figure import Figure

import hvd_sparse as hvd
from benchmarks.convergence.simulation import WAITING
from benchmarks.nodes.arms import ARMS
from benchmarks.nodes.characters import RATES as MODELS
from benchmarks.nodes.characters import Run, train
from benchmarks.reporting import report, timing, writing
from benchmarks.studies import store

STORE = writing.RESULTS / "nodes_runs.jsonl"
NODES, STEPS, RATES = (2, 4, 8, 16), 2000, (1.0, 2.0, 4.0)
Outcomes = Mapping[Run, Mapping[str, Any]]


def make(runs: Sequence[Run], to: pathlib.Path) -> None:
    """Trains, one run after the other, and keeps each."""
    hvd.init(local_size=1)
    for number, run in enumerate(runs):
        began = time.perf_counter()
        outcome = train(run)
        seconds = time.perf_counter() - began
        store.append(to, {**vars(run), **outcome, "fingerprint": run.fingerprint(), "seconds": round(seconds)})
        print(f"{number + 1} of {len(runs)}: {run}: {outcome['bits']:.4f} bits, {seconds:.0f} s", flush=True)


def table(outcomes: Outcomes) -> list[dict[str, Any]]:
    """For each number of nodes and steps, and each arm, the best rate and what it gives, beside dense training."""
    rows = []
    for task, arm in sorted({((run.model, run.nodes, run.steps), run.arm) for run in outcomes}):
        best, dense = _best(outcomes, task, arm), _best(outcomes, task, "dense")
        nodes = task[1]
        row = {**dict(zip(("model", "nodes", "steps"), task, strict=True)), "arm": arm, **best}
        row["over_dense"] = best["bits"] - dense["bits"] if dense else None
        row["saved"] = 2 * (nodes - 1) / nodes * 4 * best["parameters"] / best["sent"]
        rows.append(row)
    return rows


def _best(outcomes: Outcomes, task: tuple[str, int, int], arm: str) -> dict[str, Any]:
    """The best rate of an arm by the mean over seeds, and what it gives; {} if there is no run."""
    seeds: dict[float, list[Mapping[str, Any]]] = {}
    for run, outcome in outcomes.items():
        if ((run.model, run.nodes, run.steps), run.arm) == (task, arm):
            seeds.setdefault(run.rate, []).append(outcome)
    if not seeds:
        return {}
    means = {rate: sum(each["bits"] for each in found) / len(found) for rate, found in seeds.items()}
    rate = min(means, key=lambda each: means[each])
    inner = min(seeds) < rate < max(seeds)
    first = seeds[rate][0]
    kept = {"sent": first["sent"], "parameters": first["parameters"], "seeds": len(seeds[rate])}
    return {"rate": rate, "bracketed": inner, "bits": means[rate], **kept}


def render(rows: Sequence[Mapping[str, Any]], made: str) -> str:
    """The table as Markdown."""
    lines = ["# Accuracy by the number of nodes", "", made, ""]
    lines += ["| model | nodes | steps | arm | bits a character | over dense | dense's bytes / its | rate | seeds |"]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        over = "" if row["over_dense"] is None else f"{row['over_dense']:+.3f}"
        rate = f"x {row['rate']:g}" + ("" if row["bracketed"] else ", at the end of those tried")
        lines.append(
            f"| {row['model']} | {row['nodes']} | {row['steps']} | {row['arm']} | {row['bits']:.3f} | {over} | "
            f"{row['saved']:.1f} | {rate} | {row['seeds']} |"
        )
    return "\n".join(lines) + "\n"


def draw(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Bits over dense against bytes saved, an axis for each model and number of steps."""
    tasks = sorted({(row["model"], row["steps"]) for row in rows})
    figure = Figure(figsize=(5.5 * len(tasks), 4), layout="constrained")
    for number, task in enumerate(tasks):
        axes = figure.add_subplot(1, len(tasks), number + 1)
        mine = [row for row in rows if (row["model"], row["steps"]) == task]
        shown = [row for row in mine if row["over_dense"] is not None]
        for arm in dict.fromkeys(row["arm"] for row in shown if row["arm"] != "dense"):
            mine = [row for row in shown if row["arm"] == arm]
            axes.plot([row["saved"] for row in mine], [row["over_dense"] for row in mine], "o-", label=arm)
            for row in mine:
                axes.annotate(
                    f"{row['nodes']}", (row["saved"], row["over_dense"]), xytext=(4, 4), textcoords="offset points"
                )
        axes.set(
            title=f"{task[0]}, {task[1]} steps, by nodes",
            xlabel="dense's bytes / the arm's",
            ylabel="bits over dense",
            xscale="log",
        )
        axes.set(xlim=(1, 100), xticks=(1, 2, 5, 10, 20, 50, 100), xticklabels=("1", "2", "5", "10", "20", "50", "100"))
        axes.minorticks_off()
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.legend()
    writing.save_picture(figure, path)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="transformer")
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--rates", type=float, nargs="+", default=list(RATES), help="in units of 3e-3 (Adam) or .1 (SGD)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--render", action="store_true", help="make no run; write the report of those that there are")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # threads that take turns in Python are faster on one core
    tf.config.threading.set_inter_op_parallelism_threads(WAITING)
    model, steps = [options.model], [options.steps]
    chosen = itertools.product(options.arms, model, options.nodes, steps, options.rates, options.seeds)
    if not options.render:
        store.finished([Run(*each) for each in chosen], STORE, make)
    outcomes = store.load(STORE, _listed())
    rows = table(outcomes)
    made = report.made(timing.machine(), sum(each["seconds"] for each in outcomes.values()), "make bench-nodes")
    text = render(rows, made)
    writing.write_results("nodes", {"machine": timing.machine(), "rows": writing.columns(rows)}, text)
    draw(rows, writing.RESULTS / "nodes.png")
    print(text)


def _listed() -> list[Run]:
    """The runs that are in the store, as today's code would make them."""
    lines = STORE.read_text().splitlines() if STORE.exists() else []
    rows = map(json.loads, lines)
    names = [field.name for field in dataclasses.fields(Run)]
    return list(dict.fromkeys(Run(*(row[name] for name in names)) for row in rows if row["arm"] in ARMS))


if __name__ == "__main__":
    main()
