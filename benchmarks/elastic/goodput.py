"""Which share of its time does a training make progress in whose ranks change each minute?

Two hosts of one rank each train for --minutes, in steps that a callback makes 100 ms longer, with commits by default.
Each --period seconds something happens, in turn: a host is taken away, another comes, a rank is killed, another host
comes. Ranks wait 10 s for one that stands still, as in the question of recovery.

Goodput is useful time / elapsed time. Useful time is the number of steps that count at the end, without those that were
made again after a death, each times the mean time of a step of an undisturbed job of as many ranks: what steps took,
commits included, from ten steps after a change until the next one. So it says which part of the steps were made that
could have been made in that time; a step counts the same however many ranks made it. Without tracing means that what
the first steps after changes took longer than usual ones is not in the elapsed time.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.elastic import changes
from benchmarks.elastic.changes import DEATH, JOIN, REMOVAL, SETTLED, TOLD, Change
from benchmarks.reporting import writing
from benchmarks.reporting.report import Section, Verdict

TITLE = "Goodput with a change each minute"
PACE, TARGET = 0.1, 0.88  # seconds; without tracing
TURN = (REMOVAL, JOIN, DEATH, JOIN)


class Goodput(NamedTuple):
    """What a rank that stayed made of its time.

    Attributes:
        elapsed: seconds.
        counted: steps that count at the end.
        repeated: steps that were made again.
        usual: the seconds of an undisturbed step, by the number of ranks.
        tracing: seconds of it in all.
        share: useful time / elapsed time.
        without_tracing: the same, with elapsed time without tracing.
    """

    elapsed: float
    counted: int
    repeated: int
    usual: dict[int, float]
    tracing: float
    share: float
    without_tracing: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this question."""
    parser.add_argument("--minutes", type=float, default=8.0, help="of training (goodput; default: %(default)s)")
    parser.add_argument("--period", type=float, default=60.0, help="seconds (goodput; default: %(default)s)")


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Section:
    """Trains, and changes the ranks meanwhile."""
    found: list[Change] = []
    with changes.training(1, 2, ["--pace", str(PACE)]) as cluster:
        begin = time.time()
        for number, kind in zip(range(1, math.ceil(60 * options.minutes / options.period)), itertools.cycle(TURN)):
            time.sleep(max(0.0, begin + number * options.period - time.time()))
            found.append(cluster.bring_about(kind))
            say(f"after {found[-1].at - begin:.0f} s, {kind}: {found[-1].again:.1f} s until a step")
        time.sleep(max(0.0, begin + 60 * options.minutes - time.time()))
        made = goodput(cluster.job.events("step"), found, begin, time.time(), cluster.host)
    return section(made, [each._replace(at=each.at - begin) for each in found], options.period)


def goodput(events: changes.Events, found: Sequence[Change], begin: float, end: float, host: str) -> Goodput:
    """The goodput of the rank that stays.

    Args:
        events: steps of all ranks, in order.
        found: the changes, in order.
        begin: the time from which on it is measured.
        end: the time until then.
        host: the one that stays, with one rank.

    Raises:
        ValueError: if changes come so fast that no step is undisturbed.
    """
    own = [each for each in events if each["host"] == host and begin <= each["time"] <= end]
    counted = {each["batch"]: each["size"] for each in own[1:]}  # what was made again, as it was made last
    elapsed = own[-1]["time"] - own[0]["time"]
    usual = usual_steps(own, found)
    if not set(counted.values()) <= set(usual):
        raise ValueError("Expected undisturbed steps with each number of ranks, got none: make --period longer.")
    useful = sum(usual[size] for size in counted.values())
    tracing = sum(each.retrace for each in found)
    repeated = len(own) - 1 - len(counted)
    return Goodput(elapsed, len(counted), repeated, usual, tracing, useful / elapsed, useful / (elapsed - tracing))


def usual_steps(own: changes.Events, found: Sequence[Change]) -> dict[int, float]:
    """The mean seconds of an undisturbed step by the number of ranks.

    Args:
        own: the steps of one rank, in order.
        found: the changes, in order.
    """
    begins = [own[0]["time"], *(each.at + each.again for each in found)]
    ends = [*(each.at for each in found), own[-1]["time"]]
    seconds: dict[int, float] = {}
    count: dict[int, int] = {}
    for begin, end in zip(begins, ends, strict=True):
        stretch = [each for each in own if begin <= each["time"] <= end][SETTLED:]
        if len(stretch) < 2:
            continue
        size = stretch[0]["size"]
        seconds[size] = seconds.get(size, 0.0) + stretch[-1]["time"] - stretch[0]["time"]
        count[size] = count.get(size, 0) + len(stretch) - 1
    return {size: seconds[size] / count[size] for size in sorted(seconds)}


def section(made: Goodput, found: Sequence[Change], period: float) -> Section:
    """The report on what was measured."""
    steps = ", ".join(f"{1e3 * each:.0f} ms with {size}" for size, each in made.usual.items())
    told = "; ".join(TOLD[kind] for kind in TURN)
    lines = [
        f"Two hosts of one rank; every {period:g} s, in turn: {told}. A callback makes each step {1e3 * PACE:.0f} ms "
        f"longer. Undisturbed steps by the number of ranks, commits included: {steps}. Goodput is the number of steps "
        "that count at the end, each times the time of an undisturbed step of as many ranks, divided by the elapsed "
        "time; without tracing, what first steps took longer than usual ones is not in the elapsed time.",
        "",
        "| s | changes | steps that count | made again | tracing, s | goodput | without tracing |",
        "|---|---|---|---|---|---|---|",
        f"| {made.elapsed:.0f} | {len(found)} | {made.counted:,} | {made.repeated} | {made.tracing:.1f} | "
        f"{made.share:.3f} | {made.without_tracing:.3f} |",
        "",
        "| s until a step after | each time |",
        "|---|---|",
    ]
    for kind in dict.fromkeys(TURN):
        each = ", ".join(f"{change.again:.1f}" for change in found if change.kind == kind)
        lines.append(f"| {TOLD[kind]} | {each} |")
    verdict = Verdict(
        f"goodput with a change every {period:g} s, without tracing",
        f">= {TARGET}",
        f"{made.without_tracing:.3f} (with it {made.share:.3f})",
        made.without_tracing >= TARGET,
    )
    figures: dict[str, Any] = {**made._asdict(), "changes": writing.columns([each._asdict() for each in found])}
    return Section(TITLE, lines, figures, [verdict])
