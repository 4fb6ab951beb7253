"""What does it cost a rank that there are more nodes? Processes on this machine, each a node of its own.

    make bench-scale                                   (ten minutes on two cores)
    python -m benchmarks scale --nodes 4 8

Real Horovod processes train a small network on handwritten digits with `recommended`, 64 samples a step for every
number of nodes. Each rank measures, after two epochs: the bytes that its TCP sockets send in a step, as the kernel
counts them, less the payload that telemetry reports, which leaves Horovod's messages of which tensors are ready and
all framing; memory of its own, open descriptors and threads at the end; and the seconds until it has imported, joined
the others, and made its first step. As all ranks share the cores, a step takes longer the more there are, and Horovod
sends messages by the clock: the table has these bytes by the step and by the second. All ranks must end with the same
weights. Needs the command ss (package iproute2).
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarks.machines import local_ranks
from benchmarks.reporting import report, timing, writing
from benchmarks.reporting.report import Verdict

NODES, EPOCHS, RATE = (4, 8, 16, 32), 12, 4e-3
LIMIT = 1500.0  # seconds
Ranks = Sequence[Mapping[str, float]]


def measure(nodes: int, epochs: int, rate: float) -> list[dict[str, float]]:
    """What each rank found."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "found.json"
        words = ["benchmarks.nodes.scale_rank", str(path), "--epochs", str(epochs), "--rate", str(rate)]
        local_ranks.run(nodes, [*words, "--launched", str(time.time())], LIMIT)
        return json.loads(path.read_text())


def row(found: Ranks) -> dict[str, Any]:
    """A number of nodes in figures: medians over ranks, without the first, which coordinates the others.

    Raises:
        ValueError: if the ranks do not end with the same weights.
    """
    if any(rank["apart"] for rank in found):
        raise ValueError("Expected ranks with the same weights after the training; they differ.")
    others = found[1:]
    names = ("control", "payload", "milliseconds", "megabytes", "descriptors", "threads", "init", "first step")
    middle = {name: statistics.median(rank[name] for rank in others) for name in names}
    middle["import"] = max(rank["import"] for rank in found)
    middle["control a second"] = 1e3 * middle["control"] / middle["milliseconds"]
    middle["control of the first"] = found[0]["control"]
    nodes = len(found)
    dense = 2 * (nodes - 1) / nodes * 4 * found[0]["weights"]
    return {"nodes": nodes, **middle, "saved": dense / middle["payload"], "accuracy": found[0]["accuracy"]}


def verdicts_of(rows: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """The targets, met or missed, between the fewest and the most nodes."""
    few, many = rows[0], rows[-1]
    between = f"{few['nodes']} to {many['nodes']} nodes"
    times = many["control"] / few["control"]
    by_second = many["control a second"] / few["control a second"]
    more = many["megabytes"] - few["megabytes"]
    opened = many["descriptors"] - few["descriptors"]
    allowed = 2 * (many["nodes"] - few["nodes"])
    told = f"{times:.1f} ({by_second:.2f} a second)"
    return [
        Verdict(f"control bytes a step, {between}, times", "<= 2", told, times <= 2),
        Verdict(f"MB of a rank, {between}, more", "<= 64", f"{more:.0f}", more <= 64),
        Verdict(f"descriptors, {between}, more", f"<= {allowed}", f"{opened:.0f}", opened <= allowed),
    ]


def render(rows: Sequence[Mapping[str, Any]], made: str) -> str:
    """The report as Markdown."""
    lines = ["# What more nodes cost a rank", "", made, "", "## Targets", "", *report.table(verdicts_of(rows)), ""]
    lines += [
        "| nodes | payload, bytes a step | dense's / its | control, bytes a step | a second | of rank 0, a step |"
    ]
    lines += ["|---|---|---|---|---|---|"]
    for each in rows:
        control = [each["control"], each["control a second"], each["control of the first"]]
        told = " | ".join(f"{value:,.0f}" for value in control)
        lines.append(f"| {each['nodes']} | {each['payload']:,.0f} | {each['saved']:.1f} | {told} |")
    lines += [
        "",
        "| nodes | MB | descriptors | threads | s to import | to join | to the first step | ms a step | top-1 |",
    ]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for each in rows:
        sizes = f"{each['megabytes']:.0f} | {each['descriptors']:.0f} | {each['threads']:.0f}"
        seconds = f"{each['import']:.1f} | {each['init']:.1f} | {each['first step']:.1f} | {each['milliseconds']:.0f}"
        lines.append(f"| {each['nodes']} | {sizes} | {seconds} | {100 * each['accuracy']:.1f}% |")
    return "\n".join(lines) + "\n"


def draw(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Bytes, memory and descriptors, and seconds, by the number of nodes."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    sent, kept, took = figure.subplots(1, 3)
    nodes = [each["nodes"] for each in rows]
    for axes, title, names in (
        (sent, "bytes a step", ("payload", "control", "control of the first")),
        (kept, "a rank holds", ("megabytes", "descriptors", "threads")),
        (took, "seconds to start", ("import", "init", "first step")),
    ):
        for name in names:
            axes.plot(nodes, [each[name] for each in rows], "o-", label=name)
        axes.set(title=title, xlabel="nodes", xscale="log", yscale="log", xticks=nodes, xticklabels=nodes)
        axes.minorticks_off()
        axes.legend()
    writing.save_picture(figure, path)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES))
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--rate", type=float, default=RATE, help="Adam's")
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    began, rows = time.perf_counter(), []
    for nodes in sorted(options.nodes):
        rows.append(row(measure(nodes, options.epochs, options.rate)))
        print(f"{nodes} nodes, {time.perf_counter() - began:.0f} s: {rows[-1]}", flush=True)
    made = report.made(timing.machine(), time.perf_counter() - began, "make bench-scale")
    text = render(rows, made)
    print(text)
    if options.dry:
        return
    stem = writing.write_results("scale", {"machine": timing.machine(), "options": vars(options), "rows": rows}, text)
    draw(rows, stem.with_suffix(".png"))


if __name__ == "__main__":
    main()
