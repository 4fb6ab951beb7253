"""Is a small all-reduce slower in an elastic job?

Jobs of two hosts with one or two ranks each, elastic ones and ones with fixed ranks in turn, time all-reduces of 1 and
of 1,000 floats, call by call, and check the sums. A job's figure is the median of its calls on rank 0.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks.elastic import launching
from benchmarks.reporting.report import Section, Verdict

TITLE = "Small all-reduces"
FLOATS = (1, 1000)
FIXED, ELASTIC = "fixed", "elastic"
TARGET = 1.1  # times the time in a job with fixed ranks
_LIMIT = 240.0  # seconds
Milliseconds = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]  # shape -> floats -> arm -> each launch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this question."""
    parser.add_argument("--launches", type=int, default=3, help="of each arm (small; default: %(default)s)")
    parser.add_argument("--calls", type=int, default=500, help="of each size (small; default: %(default)s)")


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Section:
    """Launches all arms in turn."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for slots in options.slots:
        shape = f"2x{slots}"
        found[shape] = {str(floats): {FIXED: [], ELASTIC: []} for floats in FLOATS}
        for number in range(options.launches):
            for arm in (FIXED, ELASTIC) if number % 2 == 0 else (ELASTIC, FIXED):
                told = launch(arm, slots, options.calls)
                for floats, milliseconds in told.items():
                    found[shape][floats][arm].append(milliseconds)
                say(f"{shape}, launch {number + 1}, {arm}: {', '.join(f'{each:.2f} ms' for each in told.values())}")
    return section(found)


def launch(arm: str, slots: int, calls: int) -> dict[str, float]:
    """The milliseconds of rank 0, by the number of floats."""
    words = ["--calls", str(calls)]
    found = launching.launch("benchmarks.elastic.small_rank", slots, words, elastic=arm == ELASTIC, limit=_LIMIT)
    return found[0]["milliseconds"]


def section(found: Milliseconds) -> Section:
    """The report on what was measured."""
    lines = [
        "Milliseconds of a call, medians of launches; the ratio is that of launches that follow each other, with least "
        "and most in brackets.",
        "",
        "| hosts | floats | fixed ranks | elastic | launches | elastic / fixed |",
        "|---|---|---|---|---|---|",
    ]
    verdicts = []
    for shape, sizes in found.items():
        for floats, arms in sizes.items():
            ratios = [one / other for one, other in zip(arms[ELASTIC], arms[FIXED], strict=True)]
            ratio = statistics.median(ratios)
            told = f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            middle = " | ".join(f"{statistics.median(arms[arm]):.2f}" for arm in (FIXED, ELASTIC))
            lines.append(f"| {shape} | {int(floats):,} | {middle} | {len(ratios)} | {told} |")
            what = f"{shape}: all-reduce of {int(floats):,} floats, elastic / fixed"
            verdicts.append(Verdict(what, f"<= {TARGET}", told, ratio <= TARGET))
    return Section(TITLE, lines, {"milliseconds": found}, verdicts)
