"""How long do the others stand when a rank dies or stands still, and when a host leaves or joins?

A job of `training_rank` under horovodrun, on loopback addresses as hosts, makes steps of --pace seconds and more, and
commits after each, so that commits are no part of what is measured. In each round hosts leave in each way, in an order
that differs from round to round, and after each one a new host joins. Of each change, one rank that stays says: how
long it took until it made a step with the ranks that there are then; how much of it passed until the decorated function
was called; and how much longer the first step took than a usual one, which is the time in which TensorFlow traces. A
job must end with equal replicas, and all of its steps made.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarks.elastic import changes
from benchmarks.elastic.changes import DEATH, JOIN, LEAVING, NOTICE, REMOVAL, STANDSTILL, STILL, TOLD, Change
from benchmarks.reporting import timing, writing
from benchmarks.reporting.report import Section, Verdict

TITLE = "Seconds until the others step again"
SHAPES = {1: LEAVING, 2: (DEATH, REMOVAL)}  # slots of each of two hosts -> what happens there
TARGETS = {DEATH: 8.0, REMOVAL: 2.0, NOTICE: 2.0, STANDSTILL: STILL + 15.0}  # seconds
JOINED = 10.0  # seconds from when a new process has imported everything
TORCHFT = (
    "For comparison, torchft (PyTorch), read and not run: by default a rank is taken for dead after 5 s without a "
    "heartbeat (`heartbeat_timeout_ms` in its `src/lighthouse.rs`), a collective that hangs ends after 60 s (`timeout` "
    "of its `Manager`), and a step in which one fails is skipped. A user reports 948 s from a fault to full recovery, "
    "for Llama 3 8B ([meta-pytorch/torchft#329](https://github.com/meta-pytorch/torchft/issues/329)); models and "
    "machines are too different to compare seconds."
)
Changes = Mapping[str, Sequence[Change]]  # shape -> changes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this question."""
    parser.add_argument("--rounds", type=int, default=3, help="of all changes (recovery; default: %(default)s)")
    parser.add_argument("--pace", type=float, default=0.05, help="seconds (recovery; default: %(default)s)")
    parser.add_argument(
        "--slots", type=int, nargs="+", choices=SHAPES, default=[*SHAPES], help="of a host (recovery, small)"
    )


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Section:
    """Runs a job for each shape."""
    found = {}
    for slots in options.slots:
        with changes.training(slots, 2, ["--pace", str(options.pace), "--commits", "1"]) as cluster:
            found[f"2x{slots}"] = _rounds(cluster, SHAPES[slots], options.rounds, say)
    return section(found)


def _rounds(cluster: changes.Cluster, kinds: Sequence[str], rounds: int, say: Callable[[str], None]) -> list[Change]:
    found = []
    for number in range(rounds):
        for kind in (each for leaving in timing.shuffled(kinds, number) for each in (leaving, JOIN)):
            found.append(cluster.bring_about(kind))
            last = found[-1]
            parts = f"{last.called:.1f} until training is called, {last.retrace:.1f} of tracing"
            say(f"round {number + 1}, {cluster.ranks} ranks after {kind}: {last.again:.1f} s, {parts}")
    return found


def section(found: Changes) -> Section:
    """The report on what was measured."""
    lines = [
        "Medians and, in brackets, least and most. Times are those of a rank that stays, from the change on: until the "
        "launcher's notice has come, until the function that trains is called again, and until the first step is done. "
        "*Tracing* is what that step took longer than a usual one; after a join it waits for the new ranks to trace, "
        f"too. *Paused* is the longest time without a step. Commits come after each step; {STILL} s without a message "
        "are a standstill (30 by default).",
        "",
        "| hosts | what happens | n | noticed, s | called, s | step done, s | tracing, s | paused, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for shape, kind, group in _groups(found):
        columns = (_spread([getattr(each, name) for each in group]) for name in ("noticed", "called", "again"))
        more = (_spread([getattr(each, name) for each in group]) for name in ("retrace", "paused"))
        lines.append(f"| {shape} | {TOLD[kind]} | {len(group)} | {' | '.join([*columns, *more])} |")
    lines += ["", TORCHFT]
    rows = [
        {"hosts": shape, **each._asdict(), "at": each.at - group[0].at}
        for shape, group in found.items()
        for each in group
    ]
    return Section(TITLE, lines, {"changes": writing.columns(rows)}, verdicts_of(found))


def verdicts_of(found: Changes) -> list[Verdict]:
    """The targets, met or missed, by medians with all tracing."""
    verdicts = []
    for shape, kind, group in _groups(found):
        name, target = ("imported", JOINED) if kind == JOIN else ("again", TARGETS[kind])
        since = "after the new processes have imported" if kind == JOIN else f"after {TOLD[kind]}"
        values = [getattr(each, name) for each in group]
        met = statistics.median(values) <= target
        told = f"{_spread(values)}{_of_which(group)}"
        verdicts.append(Verdict(f"{shape}: s until a step {since}", f"<= {target:g}", told, met))
    return verdicts


def _of_which(group: Sequence[Change]) -> str:
    """The medians of parts that are the launcher's and TensorFlow's."""
    noticed = [each.noticed for each in group if each.noticed is not None and each.kind != JOIN]
    launcher = f"{statistics.median(noticed):.1f} until the notice, " if noticed else ""
    return f"; of it {launcher}{statistics.median(each.retrace for each in group):.1f} of tracing"


def _groups(found: Changes) -> list[tuple[str, str, list[Change]]]:
    """Shape, kind and the changes of each."""
    return [
        (shape, kind, group)
        for shape, all_kinds in found.items()
        for kind in (*LEAVING, JOIN)
        if (group := [each for each in all_kinds if each.kind == kind])
    ]


def _spread(values: Sequence[float | None]) -> str:
    known = [each for each in values if each is not None]
    if not known:
        return ""
    return f"{statistics.median(known):.1f} ({min(known):.1f} to {max(known):.1f})"


def draw(figures: Mapping[str, Any], path: str) -> None:
    """Medians of the parts of each change, and each round's seconds until the first step."""
    names = figures["changes"]["columns"]
    rows = [dict(zip(names, row, strict=True)) for row in figures["changes"]["rows"]]
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    labels = list(dict.fromkeys((row["hosts"], row["kind"]) for row in rows))
    groups = [[row for row in rows if (row["hosts"], row["kind"]) == label] for label in labels]
    called, retrace = (
        [statistics.median(row[name] for row in group) for group in groups] for name in ("called", "retrace")
    )
    places = range(len(labels))
    axes.barh(places, called, label="until training is called")
    axes.barh(places, retrace, left=called, label="tracing")
    for place, group in zip(places, groups, strict=True):
        axes.plot(
            [row["again"] for row in group], [place] * len(group), "k.", label="" if place else "first step, each round"
        )
    axes.set(
        yticks=places, yticklabels=[f"{hosts}, {kind}" for hosts, kind in labels], xlabel="seconds from the change"
    )
    axes.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=3)
    writing.save_picture(figure, path)
