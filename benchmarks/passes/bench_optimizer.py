"""What a step costs if the exchange runs the optimizer, or its momentum: `make bench-optimizer`.

Four ranks on this host act as two nodes of two, with one thread each, 25M weights, Adam and a density of 0.01. A step
starts with the gradients computed and ends with the weights updated: exchange, selection, error feedback and the
optimizer's arithmetic. The links are this host's memory and loopback, so that communication does not hide the
computation. All arms run in turn, in another order each round; "A/A" is a second arm that does what hitopk does. Memory
is what optimizer and exchange keep on a rank from step to step, residuals included.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
import time
from typing import Any

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from benchmarks.machines import local_ranks
from benchmarks.passes.optimizer_rank import AGAIN, AHEAD, ALONE, DENSE, GAIN_RATIO, MOMENTUM, SPARSE, UPDATES
from benchmarks.reporting import report, timing, writing
from benchmarks.reporting.report import Verdict

NODES, LOCAL = 2, 2
LIMIT = 1500.0  # seconds
ADAM = 8  # bytes of its slots per weight
RESIDUAL = 4


def measure(elements: int, density: float, rounds: int) -> dict[str, Any]:
    """Runs the ranks."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "measured.json"
        rank = ["benchmarks.passes.optimizer_rank", str(path), "--local", str(LOCAL), "--elements", str(elements)]
        local_ranks.run(NODES * LOCAL, [*rank, "--density", str(density), "--rounds", str(rounds)], LIMIT)
        return json.loads(path.read_text())


def verdicts_of(measured: dict[str, Any], elements: int) -> list[Verdict]:
    """The targets, met or missed."""
    times, kept = measured["times"], measured["kept"]
    noise, found = _ratio(times[AGAIN], times[SPARSE])[1], []
    for arm in (MOMENTUM, UPDATES):
        ratio, told = _ratio(times[arm], times[SPARSE])
        found.append(Verdict(f"{arm}: a step, over one of {SPARSE}", "<= 1.05", f"{told}; A/A {noise}", ratio <= 1.05))
    most = elements * (ADAM + RESIDUAL) / LOCAL
    share = kept[UPDATES] / most
    told = f"{share:.3f} ({kept[UPDATES] / 1e6:.0f} / {most / 1e6:.0f} MB)"
    found.append(
        Verdict(f"{UPDATES}: memory, over 1/{LOCAL} of Adam's slots and a residual", "<= 1.01", told, share <= 1.01)
    )
    return found


def _ratio(ones: list[float], others: list[float]) -> tuple[float, str]:
    ratio, low, high = timing.paired_ratio(ones, others)
    return ratio, f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def render(measured: dict[str, Any], options: argparse.Namespace, seconds: float) -> str:
    """The report as Markdown."""
    about = timing.machine()
    rows = []
    for arm, taken in measured["times"].items():
        middle, low, high = np.percentile(taken, [50, 25, 75])
        ratio = "" if arm == SPARSE else f"{timing.paired_ratio(taken, measured['times'][SPARSE])[0]:.2f}"
        rows.append(f"| {arm} | {middle:.0f} ({low:.0f} to {high:.0f}) | {ratio} | {measured['kept'][arm] / 1e6:.0f} |")
    lines = [
        f"# A step with the optimizer in the exchange, {about['date']}",
        "",
        f"`make bench-optimizer` on {about['processor']}; TensorFlow {tf.__version__}; commit {about['commit']}; "
        f"{options.elements:,} weights, density {options.density}, {options.rounds} rounds, {seconds / 60:.0f} "
        "minutes. benchmarks/passes/bench_optimizer.py describes what is measured, and how.",
        "",
        "## Targets",
        "",
        *report.table(verdicts_of(measured, options.elements)),
        "",
        "## Steps",
        "",
        "Medians (quartiles) in milliseconds, of the slowest rank; ratios are medians of pairs of one round.",
        "",
        f"| | ms | over {SPARSE} | MB kept on a rank |",
        "|---|---|---|---|",
        *rows,
        "",
    ]
    return "\n".join(lines)


def draw(measured: dict[str, Any], path: str) -> None:
    """A box for each arm."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    arms = (ALONE, DENSE, SPARSE, MOMENTUM, UPDATES, AHEAD, GAIN_RATIO)
    axes.boxplot([measured["times"][arm] for arm in arms], orientation="horizontal", tick_labels=arms, showfliers=False)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("ms a step, slowest of 4 ranks on 2 cores")
    writing.save_picture(figure, path)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=25 * 10**6)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    began = time.perf_counter()
    measured = measure(options.elements, options.density, options.rounds)
    text = render(measured, options, time.perf_counter() - began)
    print(text)
    if options.dry:
        return
    summary = {"machine": timing.machine(), "options": vars(options), **writing.medians(measured)}
    stem = writing.write_results("optimizer", summary, text, measured)
    draw(measured, f"{stem}.png")
    print(f"Written to {stem}.json, .md and .png")


if __name__ == "__main__":
    main()
