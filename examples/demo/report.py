"""The demo's figures as a table and as a plot."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

from examples.demo.settings import NODES, RECIPES, TARGET

ON_LOOPBACK = (
    "Bytes cost next to no time there, so recipes that send fewer gain nothing: the table shows what they send, not "
    "what they save on a network."
)


def summarise(everyones: list[list[dict[str, Any]]], rate: str | None) -> dict[str, Any]:
    """Figures by recipe, from the runs of all ranks.

    Seconds are the slowest rank's; bytes are those that one node sends to the other during the whole training.
    """
    recipes = {}
    for number, name in enumerate(RECIPES):
        runs = [ranks[number] for ranks in everyones]
        slowest = max(runs, key=lambda run: run["curve"][-1][0])
        curve = [
            [seconds, accuracy] for (seconds, _), (_, accuracy) in zip(slowest["curve"], runs[0]["curve"], strict=True)
        ]
        recipes[name] = {
            "curve": curve,
            "accuracy": curve[-1][1],
            "seconds": curve[-1][0],
            "seconds_to_target": next((seconds for seconds, accuracy in curve if accuracy >= TARGET), None),
            "step_seconds": max(run["step_seconds"] for run in runs),
            "bytes_across": sum(run["across"] for run in runs) / NODES,
            "replicas_identical": len({run["weights"] for run in runs}) == 1,
        }
    return {"network": rate, "target": TARGET, "recipes": recipes}


def table(summary: dict[str, Any]) -> Iterator[str]:
    """One line per recipe; the others are compared with the first one."""
    rows = summary["recipes"]
    first = next(iter(rows.values()))["seconds_to_target"]
    yield ""
    target = f"seconds to {summary['target']:.0%}"
    yield f"{'recipe':12s} {target:>15} {'sooner':>8} {'accuracy':>9} {'ms a step':>10} {'MB sent':>8}  replicas"
    for name, row in rows.items():
        reached = row["seconds_to_target"]
        seconds = "-" if reached is None else f"{reached:.1f}"
        sooner = f"{first / reached:.1f}x" if first and reached else "-"
        replicas = "identical" if row["replicas_identical"] else "DIFFERENT"
        yield (
            f"{name:12s} {seconds:>15} {sooner:>8} {row['accuracy']:9.3f} {1e3 * row['step_seconds']:10.0f} "
            f"{row['bytes_across'] / 1e6:8.1f}  {replicas}"
        )
    yield ""
    yield "Accuracy is on held-out crops after the last step. MB sent are from one node to the other."
    if summary["network"] is None:
        yield f"The ranks used this machine's loopback. {ON_LOOPBACK}"
    yield ""


def draw(summary: dict[str, Any], path: pathlib.Path) -> None:
    """Plots accuracy on held-out crops against seconds of training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axis = figure.subplots()
    for name, row in summary["recipes"].items():
        seconds, accuracies = zip(*row["curve"], strict=True)
        axis.plot(
            seconds,
            accuracies,
            "o-",
            markersize=3,
            label=f"{name}, {row['bytes_across'] / 1e6:,.0f} MB to the other node",
        )
    axis.axhline(summary["target"], color="grey", linewidth=0.8, linestyle=":")
    where = (
        f"links of {summary['network'].replace('mbit', ' Mbit/s').replace('gbit', ' Gbit/s')}"
        if summary["network"]
        else "loopback, no network"
    )
    axis.set(
        xlabel="seconds of training",
        ylabel="accuracy on held-out crops",
        title=f"2 nodes of 2 ranks, {where}",
    )
    axis.set_ylim(bottom=0.0)
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    part = path.with_suffix(".part.png")
    figure.savefig(part, dpi=120)
    part.replace(path)
