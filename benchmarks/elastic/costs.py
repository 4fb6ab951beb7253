"""What do commits cost, and a guard of replicas, when nothing happens?

An elastic job of two hosts with one rank each trains networks of 1M and 10M parameters with `recommended`. Phases with
`ReplicaGuardCallback` and without it alternate in the same job. The guard checks every 5 steps there, so that a check
is 5 times what steps take longer with it; its share at every 100 steps, the default, is check / (100 x step). Then come
steps with commits as often as `CommitStateCallback` finds right; the time of each commit is taken. All ranks must end
with the same weights.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.elastic import launching
from benchmarks.reporting.report import Section, Verdict

TITLE = "What commits and a guard of replicas cost"
EVERY, USUAL_EVERY = 5, 100  # steps from one check to the next, here and by default
TARGET = 0.01  # of the time
_LIMIT = 600.0  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this question."""
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**6, 10**7], help="parameters (costs)")
    parser.add_argument("--phases", type=int, default=5, help="of each arm (costs; default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a phase (costs; default: %(default)s)")
    parser.add_argument("--commits", type=int, default=6, help="that are timed (costs; default: %(default)s)")


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Section:
    """Runs a job for each size."""
    rows = []
    for parameters in options.sizes:
        counts = {"rounds": options.phases, "seconds": options.seconds, "commits": options.commits}
        rows.append(row(launch(parameters, counts)))
        last = rows[-1]
        say(f"{parameters:,} parameters: {last['step']:.1f} ms a step, {last['check']:.1f} a check")
        say(f"{parameters:,} parameters: {last['commit']:.1f} ms a commit, {last['share']:.1%} of the time")
    return section(rows)


def launch(parameters: int, counts: Mapping[str, float]) -> list[dict[str, Any]]:
    """What each rank has measured."""
    words = [word for name, value in {"parameters": parameters, **counts}.items() for word in (f"--{name}", str(value))]
    return launching.launch("benchmarks.elastic.costs_rank", 1, words, elastic=True, limit=_LIMIT)


def row(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of a size: those of rank 0.

    Raises:
        ValueError: if the ranks do not end with the same weights.
    """
    if len({each["weights"] for each in found}) > 1:
        raise ValueError("Expected ranks with the same weights after the training; they differ.")
    first = found[0]
    step = statistics.median(first["seconds"]["plain"])
    pairs = zip(first["seconds"]["guard"], first["seconds"]["plain"], strict=True)
    checks = [1e3 * EVERY * (guard - plain) for guard, plain in pairs]
    check = statistics.median(checks)
    at_usual = check / (USUAL_EVERY * 1e3 * step)
    figures = {"parameters": first["parameters"], "step": 1e3 * step}
    return {**figures, "check": check, "checks": sorted(checks), "guard": at_usual, **first["commits"]}


def section(rows: Sequence[Mapping[str, Any]]) -> Section:
    """The report on what was measured."""
    lines = [
        "An elastic job of 2x1, batch 32 on each rank, `recommended(0.01)` with Adam. A check of the guard: medians of "
        f"{len(rows[0]['checks'])} pairs of phases, with least and most. Commits come as often as the callback finds "
        "right; what they copy is weights, slots and residuals.",
        "",
        "| parameters | ms a step | ms a check | share at every 100 | ms a commit | steps to the next | share |",
        "|---|---|---|---|---|---|---|",
    ]
    verdicts = []
    for each in rows:
        check = f"{each['check']:.1f} ({each['checks'][0]:.1f} to {each['checks'][-1]:.1f})"
        guard, commit = f"{each['guard']:.2%}", f"{each['commit']:.1f} | {each['steps']:.0f} | {each['share']:.1%}"
        parts = f"{each['parameters']:,} | {each['step']:.1f} | {check} | {guard}"
        lines.append(f"| {parts} | {commit} |")
        what = f"{each['parameters'] / 1e6:.0f}M parameters: share of a guard's checks at every {USUAL_EVERY} steps"
        verdicts.append(Verdict(what, f"<= {TARGET:.0%}", guard, each["guard"] <= TARGET))
    return Section(TITLE, lines, {"sizes": list(rows)}, verdicts)
