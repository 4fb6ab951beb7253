"""The report of bench_exchange.py: tables as Markdown, targets met or missed, and a picture."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from benchmarks.exchange import arm_recipes
from benchmarks.exchange.arms import SPARSE
from benchmarks.machines.cluster import bits_per_second
from benchmarks.reporting import report, timing, writing
from hvd_sparse import costs

DENSE = (
    "horovod.allreduce",
    "horovod.allreduce, A/A",
    "horovod.allreduce-fp16",
    "dense",
    "torus2d",
    "torus2d-fp16",
    "2DTAR, literal",
)
DENSE_ROUNDS, SPARSE_ROUNDS = 3, 5
_COLUMNS = 4  # panels side by side


class Target(NamedTuple):
    """A target for an arm against another one in the same cell."""

    shape: tuple[int, int]
    rate: str
    density: float
    arm: str
    than: str
    times: float


TARGETS = (
    Target((2, 2), "1gbit", 0.001, "hitopk", "horovod.allreduce", 9.0),
    Target((2, 2), "1gbit", 0.01, "hitopk", "horovod.allreduce", 8.0),
    Target((4, 1), "1gbit", 0.001, "topk", "horovod.allreduce", 14.0),
    Target((4, 1), "1gbit", 0.01, "topk", "horovod.allreduce", 9.0),
    Target((2, 2), "1gbit", 0.01, "torus2d", "horovod.allreduce", 1.4),
    Target((4, 2), "100mbit", 0.01, "hitopk", "topk", 1.7),
    Target((4, 2), "100mbit", 0.01, "hitopk", "horovod.allreduce", 18.0),
)


def link_bytes(arm: str, size: int, density: float, nodes: int, local: int) -> float:
    """Payload bytes that a node must send; a rival counts as the recipe it implements."""
    name = arm_recipes.in_full(arm)
    recipe = {"NaiveAG, literal": "topk", "2DTAR, literal": "torus2d"}.get(name, name)
    whole = costs.link_bytes(recipe if recipe in costs.MODELS else "dense", nodes, local, size, density)
    return whole / 2 if arm_recipes.sends_halves(arm) else whole


def floor_seconds(sent: float, cell: dict, run: dict, read_rate: float) -> float:
    """A node's bytes over its link's rate, plus the gradient read and the mean written by each rank of two cores."""
    nodes, local = run["shape"]
    link = sent * 8 / bits_per_second(run["rate"])
    touched = 8.0 * cell["size"] * nodes * local / 2  # all ranks share two cores
    return link + touched / read_rate


def predicted_seconds(arm: str, cell: dict, run: dict) -> float | None:
    """The cost model's prediction, with the planner's measured constants; None for rivals without a model."""
    recipe = "dense" if arm == "horovod.allreduce" else arm
    if recipe not in costs.MODELS:
        return None
    return costs.seconds(recipe, cluster_of(run), cell["size"], cell["density"])


def cluster_of(run: dict) -> costs.Cluster:
    """The cluster as the planner measured it."""
    nodes, local, inside, across, memory, entry, reducing = run["cluster"]
    links = [None if link is None else costs.Link(*link) for link in (inside, across, reducing)]
    return costs.Cluster(nodes, local, links[0], links[1], memory, entry, links[2])


def model_error(rows: list[dict]) -> str:
    """How far the cost model is off, in a sentence."""
    errors = [abs(row["model_ms"] / row["ms"] - 1) for row in rows if row["model_ms"] is not None]
    worst = max(
        (row for row in rows if row["model_ms"] is not None), key=lambda row: abs(row["model_ms"] / row["ms"] - 1)
    )
    return (
        f"The cost model is off by {np.median(errors):.0%} (median of {len(errors)} cells), at worst at "
        f"{worst['shape']}, {worst['rate']}, {worst['size']}, {worst['density']}, {worst['arm']}: "
        f"{worst['model_ms']:.1f} ms for {worst['ms']:.1f} ms."
    )


def rows_of(runs: list[dict], read_rate: float) -> list[dict]:
    """One row per arm and cell."""
    rows = []
    for run in runs:
        for cell in run["cells"]:
            for arm, seconds in cell["seconds"].items():
                nodes, local = run["shape"]
                median, rounds = float(np.median(seconds)), len(seconds)
                ranks = nodes * local
                predicted = predicted_seconds(arm, cell, run)
                counted = max(cell["sent"][arm]) / rounds
                # What `auto` sends follows from its choices, which only the counters know.
                claimed = None if arm == "auto" else link_bytes(arm, cell["size"], cell["density"], nodes, local)
                floor = floor_seconds(counted if claimed is None else claimed, cell, run, read_rate)
                rows.append(
                    {
                        "shape": f"{nodes}x{local}",
                        "rate": run["rate"],
                        "size": cell["name"],
                        "density": cell["density"],
                        "arm": arm,
                        "ms": 1e3 * median,
                        "p95_ms": 1e3 * float(np.percentile(seconds, 95)),
                        "algbw": 4e-9 * cell["size"] / median,
                        "busbw": 8e-9 * cell["size"] / median * (ranks - 1) / ranks,
                        "claimed": claimed,
                        "counted": counted,
                        "floor_ms": 1e3 * floor,
                        "reached": floor / median,
                        "wrong": cell["wrong"][arm],
                        "decided": cell["decided"].get(arm, []),
                        "model_ms": None if predicted is None else 1e3 * predicted,
                    }
                )
    return rows


def choices(rows: list[dict]) -> list[dict]:
    """How `auto` did in each cell against the best fixed recipe and Horovod, with two measures of the noise.

    These are Horovod's second arm against its first, and `auto` against the arm of the one recipe that it chose.
    """
    found = []
    for row in rows:
        if row["arm"] != "auto":
            continue
        there = _beside(rows, row)
        if not set(DENSE[:2]) <= set(there):
            continue
        by_itself = there.get(row["decided"][0]) if len(row["decided"]) == 1 else None
        fixed = {arm: ms for arm, ms in there.items() if arm in costs.CANDIDATES}
        best = min(fixed, key=fixed.__getitem__)
        found.append(
            {
                **{what: row[what] for what in ("shape", "rate", "size", "density", "ms")},
                "best": best,
                "chose": row["decided"],
                "against_same": None if by_itself is None else row["ms"] / by_itself - 1,
                "regret": row["ms"] / fixed[best] - 1,
                "against_horovod": row["ms"] / there[DENSE[0]] - 1,
                "noise": abs(there[DENSE[1]] / there[DENSE[0]] - 1),
            }
        )
    return found


def _beside(rows: list[dict], cell: dict) -> dict[str, float]:
    """Milliseconds of the arms that a cell is compared with: its own, and the dense ones timed in another.

    A dense exchange does not depend on the density; if it is slow, only the first cell of its size has it.
    """
    same = [row for row in rows if all(row[what] == cell[what] for what in ("shape", "rate", "size"))]
    once = {row["arm"]: row["ms"] for row in reversed(same) if row["arm"] in DENSE}
    return once | {row["arm"]: row["ms"] for row in same if row["density"] == cell["density"]}


def choices_table(rows: list[dict]) -> list[str]:
    """The same as Markdown."""
    found = choices(rows)
    if not found:
        return ["`auto` did not take part, or nobody to hold it against."]
    regrets = [each["regret"] for each in found]
    slower = [each for each in found if each["against_horovod"] > each["noise"] + 0.03]
    lines = [
        f"`auto` takes {np.median(regrets):+.1%} more than the best fixed recipe (median of {len(found)} cells; "
        f"wanted: 5%), at worst {max(regrets):+.1%} (15%). It is slower than Horovod by more than the noise (A/A) and "
        f"3% in {len(slower)} of them (none).{_by_itself(found)}",
        "",
        "| shape | link | d | density | auto ms | chose | more than that by itself | best fixed recipe | more than it "
        "| more than Horovod | A/A |",
        "|---" * 11 + "|",
    ]
    for each in found:
        same = "" if each["against_same"] is None else f"{each['against_same']:+.1%}"
        lines.append(
            f"| {each['shape']} | {each['rate']} | {each['size']} | {each['density']} | {each['ms']:.1f} | "
            f"{', '.join(each['chose'])} | {same} | {each['best']} | {each['regret']:+.1%} | "
            f"{each['against_horovod']:+.1%} | {each['noise']:.1%} |"
        )
    return lines


def _by_itself(found: list[dict]) -> str:
    """How `auto` did against the one recipe that it chose, where it chose one: nothing but noise, in a sentence."""
    noise = [abs(each["against_same"]) for each in found if each["against_same"] is not None]
    if not noise:
        return ""
    return (
        f" Against the recipe that it chose, in an arm by itself, it differs by {np.median(noise):.1%} (median) and "
        f"{max(noise):.1%} (worst): that is noise."
    )


def verdicts(rows: list[dict]) -> list[report.Verdict]:
    """The targets, met or missed, as far as their cells were measured."""

    def find(target: Target, arm: str) -> float | None:
        where = {"shape": f"{target.shape[0]}x{target.shape[1]}", "rate": target.rate, "size": "25M"}
        cell = {**where, "density": target.density}
        return _beside(rows, cell).get(arm)

    made = []
    for target in TARGETS:
        ours, theirs = find(target, target.arm), find(target, target.than)
        if ours is not None and theirs is not None:
            cell = f"{target.shape[0]}x{target.shape[1]}, {target.rate}, 25M, {target.density}"
            what = f"{cell}: {target.arm} against {target.than}"
            met = theirs / ours >= target.times
            made.append(report.Verdict(what, f">= {target.times}x", f"{theirs / ours:.1f}x", met))
    return made


def render(runs: list[dict], rows: list[dict], read_rate: float) -> str:
    """The tables as Markdown."""
    about = timing.machine()
    lines = [
        f"# The exchange, {about['date']}",
        "",
        f"`make bench-exchange` on {about['processor']} for all ranks together; commit {about['commit']}; "
        f"{about['stolen']} of the cores' time stolen by the host; one core "
        f"reads {read_rate / 1e9:.0f} GB/s; TCP's congestion control is {runs[0]['congestion']}. Medians of at least "
        f"{DENSE_ROUNDS} rounds of dense arms, {SPARSE_ROUNDS} of others.",
        "",
        "Idle traffic of Horovod, KB/s a node: "
        + "; ".join(
            f"{run['shape'][0]}x{run['shape'][1]} at {run['rate']}: {max(run['idle']) / 1e3:.0f}" for run in runs
        )
        + ".",
        "",
        "## Targets",
        "",
        *report.table(verdicts(rows)),
        "",
        "## auto",
        "",
        *choices_table(rows),
        "",
        "## All cells",
        "",
        model_error(rows),
        "",
        "| shape | link | d | density | arm | ms (p95) | algbw GB/s | busbw GB/s | MB claimed | MB counted | floor ms "
        "| share reached | model ms |",
        "|---" * 13 + "|",
    ]
    for row in rows:
        wrong = f" (**{row['wrong']} of 2 results wrong**)" if row["wrong"] else ""
        model = "" if row["model_ms"] is None else f"{row['model_ms']:.1f}"
        claimed = "" if row["claimed"] is None else f"{row['claimed'] / 1e6:.2f}"
        lines.append(
            f"| {row['shape']} | {row['rate']} | {row['size']} | {row['density']} | {row['arm']}{wrong} | "
            f"{row['ms']:.1f} ({row['p95_ms']:.1f}) | {row['algbw']:.2f} | {row['busbw']:.2f} | "
            f"{claimed} | {row['counted'] / 1e6:.2f} | {row['floor_ms']:.1f} | {row['reached']:.0%} | "
            f"{model} |"
        )
    lines += ["", "## The four steps of HiTopKComm (CommLib Fig. 8), ms", ""]
    lines += [
        "| shape | link | d | density | reduce-scatter | selection | across nodes | all-gather and scatter |",
        "|---" * 8 + "|",
    ]
    for run in runs:
        for cell in run["cells"]:
            if cell["steps"]:
                times = " | ".join(f"{1e3 * float(np.median(taken)):.1f}" for taken in cell["steps"].values())
                shape = f"{run['shape'][0]}x{run['shape'][1]}"
                lines.append(f"| {shape} | {run['rate']} | {cell['name']} | {cell['density']} | {times} |")
    return "\n".join([*lines, ""])


def draw(rows: list[dict], path: str) -> None:
    """Milliseconds by density for 25M, one panel per shape and link."""
    shown = [row for row in rows if row["size"] == "25M"] or rows
    places = {(row["shape"], row["rate"]) for row in shown}
    panels = sorted(places, key=lambda place: (place[0], bits_per_second(place[1])))
    columns = min(_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns + 2, 4 * lines), layout="constrained")
    axes = np.atleast_1d(figure.subplots(lines, columns, sharey=True)).flatten()
    arms = dict.fromkeys(row["arm"] for row in shown if "A/A" not in row["arm"])
    colours = {arm: f"C{number % 10}" for number, arm in enumerate(arms)}
    for axis, panel in zip(axes, panels, strict=False):
        chosen = [row for row in shown if (row["shape"], row["rate"]) == panel]
        for arm, colour in colours.items():
            points = sorted((row["density"], row["ms"]) for row in chosen if row["arm"] == arm)
            if points and arm in SPARSE:
                axis.loglog(*zip(*points, strict=True), "o-", label=arm, color=colour)
            elif points:
                axis.axhline(points[0][1], linestyle="--", label=arm, color=colour)
        axis.set(title=f"{panel[0]}, {panel[1]}", xlabel="density")
        axis.grid(alpha=0.3)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for axis in axes[::columns]:
        axis.set_ylabel("ms")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize="small")
    writing.save_picture(figure, path)
