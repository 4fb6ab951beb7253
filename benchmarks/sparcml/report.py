"""The report of bench_sparcml.py: tables as Markdown, targets met or missed, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from benchmarks.machines.cluster import bits_per_second
from benchmarks.reporting import report, timing, writing
from hvd_sparse.collectives import streams
from hvd_sparse.costs import collectives as collective_costs

DENSE_ARMS = ("horovod", "horovod, A/A")
HOROVOD_SLICES = "horovod, slices"
FIXED = ("recursive_doubling", "split_allgather", "dynamic", "sparse_ring", "dense_ring", "allgather")
AUTO_AGAIN = "auto, A/A"
_JUDGED = "1gbit"  # the link to which the targets apply
_SPARSE, _TIMES = 0.001, 25.0
_DYNAMIC, _AUTO, _EXPOSED = 1.1, 0.05, 0.35
_BYTES = 4  # per float32


def claimed_bytes(arm: str, cell: dict, nodes: int) -> float:
    """Payload that a rank should send in one call; for `auto` the mean over its choices in all rounds."""
    size, kept = cell["size"], max(1, round(cell["size"] * cell["density"]))
    if arm in DENSE_ARMS:
        return 2 * (nodes - 1) / nodes * _BYTES * size
    if arm == HOROVOD_SLICES:
        return (nodes - 1) * kept * (_BYTES + collective_costs.INDEX)
    universe = kept if cell["sets"] == "identical" else size
    limit = streams.delta(size, 1, tf.float32)
    load = collective_costs.Load(nodes, size, 1, _BYTES, kept, universe, limit)
    return float(np.mean([collective_costs.sent(each, load) for each in cell["chosen"].get(arm, [arm])]))


def rows_of(runs: Sequence[dict]) -> list[dict[str, Any]]:
    """One row per arm and cell: milliseconds, and bytes per node and call."""
    rows = []
    for run in runs:
        for cell in run["cells"]:
            dense = float(np.median(cell["seconds"][DENSE_ARMS[0]]))
            for arm, seconds in cell["seconds"].items():
                median = float(np.median(seconds))
                claimed = claimed_bytes(arm, cell, run["nodes"])
                rows.append(
                    {
                        "rate": run["rate"],
                        "nodes": run["nodes"],
                        "density": cell["density"],
                        "sets": cell["sets"],
                        "union": cell["union"] / cell["size"],
                        "arm": arm,
                        "chosen": cell["chosen"].get(arm, [None])[-1],
                        "rounds": len(seconds),
                        "ms": 1e3 * median,
                        "p95_ms": 1e3 * float(np.percentile(seconds, 95)),
                        "times_dense": dense / median,
                        "claimed": claimed,
                        "counted": max(cell["sent"][arm]) / len(seconds),
                        "link_ms": 8e3 * claimed / bits_per_second(run["rate"]),
                    }
                )
    return rows


def winners(rows: Sequence[dict]) -> list[dict[str, Any]]:
    """For each cell our best two arms, and `auto` against the best and against its own second arm.

    `regret` compares with the best of the candidates of `auto`, `regret_of_all` with the best fixed arm; `noise` is the
    difference between its two arms, and `against_same` that to the arm it chose.
    """
    found = []
    for row in (each for each in rows if each["arm"] == "auto"):
        there = {each["arm"]: each["ms"] for each in rows if _cell(each) == _cell(row)}
        fixed = sorted((arm for arm in FIXED if arm in there), key=there.__getitem__)
        candidates = [arm for arm in fixed if arm in collective_costs.CANDIDATES]
        auto = there["auto"]
        found.append(
            {
                **{what: row[what] for what in ("rate", "nodes", "density", "sets", "union", "chosen", "ms")},
                "best": fixed[0],
                "second": fixed[1],
                "lead": there[fixed[1]] / there[fixed[0]],
                "times_dense": there[DENSE_ARMS[0]] / there[fixed[0]],
                "noise_of_dense": abs(there[DENSE_ARMS[1]] / there[DENSE_ARMS[0]] - 1),
                "dynamic": there["dynamic"] / there[DENSE_ARMS[0]],
                "regret": auto / there[candidates[0]] - 1,
                "regret_of_all": auto / there[fixed[0]] - 1,
                "against_same": auto / there[row["chosen"]] - 1,
                "noise": abs(there[AUTO_AGAIN] / auto - 1),
            }
        )
    return found


def _cell(row: dict) -> tuple:
    return row["rate"], row["nodes"], row["density"], row["sets"]


def overlaps_of(runs: Sequence[dict]) -> list[dict[str, Any]]:
    """One row per overlap: medians in ms, and the exposed times, also as shares of the blocking one."""
    rows = []
    for run in runs:
        for overlap in run["overlaps"]:
            ms = {arm: 1e3 * float(np.median(taken)) for arm, taken in overlap["seconds"].items()}
            exposed = ms["overlapped"] - ms["computation"]
            exposed_with_wait = ms["overlapped with a wait"] - ms["wait"]
            rows.append(
                {
                    **{what: overlap[what] for what in ("collective", "density", "matmul", "rounds")},
                    "rate": run["rate"],
                    "nodes": run["nodes"],
                    "ms": ms,
                    "exposed_ms": exposed,
                    "share": exposed / ms["collective"],
                    "exposed_with_wait_ms": exposed_with_wait,
                    "share_with_wait": exposed_with_wait / ms["collective"],
                }
            )
    return rows


def verdicts(rows: Sequence[dict], overlapped: Sequence[dict]) -> list[report.Verdict]:
    """The targets, met or missed, for the cells that were measured."""
    found = [each for each in winners(rows) if each["rate"] == _JUDGED]
    made = []
    for each in found:
        if each["density"] == _SPARSE:
            made.append(
                report.Verdict(
                    f"{_place(each)}: {each['best']} against Horovod's dense all-reduce",
                    f">= {_TIMES:.0f}x",
                    f"{each['times_dense']:.1f}x",
                    each["times_dense"] >= _TIMES,
                )
            )
        if each["density"] == 1.0 or each["sets"] == "identical":
            made.append(
                report.Verdict(
                    f"{_place(each)}: time of dynamic against Horovod's dense all-reduce",
                    f"<= {_DYNAMIC}x",
                    f"{each['dynamic']:.2f}x (A/A {each['noise_of_dense']:.1%})",
                    each["dynamic"] <= _DYNAMIC,
                )
            )
    if found:
        made += _of_auto(found, "regret", "the best that it chooses from")
        made += _of_auto(found, "regret_of_all", "the best of all fixed ones")
    return made + [_of_overlap(each) for each in overlapped if each["rate"] == _JUDGED]


def _of_auto(found: Sequence[dict], what: str, than: str) -> list[report.Verdict]:
    made = []
    for summary, of_cells in (("median", np.median), ("worst", np.max)):
        regret, noise = (float(of_cells([each[key] for each in found])) for key in (what, "noise"))
        text = f"{regret:+.1%} (A/A {noise:.1%})"
        told = f"auto's time beyond that of {than}, {summary} of {len(found)} cells"
        made.append(report.Verdict(told, f"<= {_AUTO:.0%}", text, regret <= _AUTO))
    return made


def _of_overlap(each: dict) -> report.Verdict:
    what = f"{_place(each)}: exposed time of {each['collective']} beside a computation, share of blocking time"
    ms = each["ms"]
    text = f"{each['share']:.2f} ({ms['computation']:.0f} ms of computation, {ms['collective']:.0f} of the collective)"
    return report.Verdict(what, f"<= {_EXPOSED}", text, each["share"] <= _EXPOSED)


def _place(row: dict) -> str:
    sets = ", identical sets" if row.get("sets") == "identical" else ""
    return f"{row['nodes']} ranks, {row['rate']}, {_percent(row['density'])}{sets}"


def _percent(density: float) -> str:
    return f"{100 * density:.4g}%"


def render(runs: Sequence[dict], rows: Sequence[dict], overlapped: Sequence[dict]) -> str:
    """The tables as Markdown."""
    about = timing.machine()
    size = next((cell["size"] for run in runs for cell in run["cells"]), 0)
    idle = "; ".join(f"{run['nodes']} ranks at {run['rate']}: {max(run['idle']) / 1e3:.0f}" for run in runs)
    lines = [
        f"# SparCML's collectives, {about['date']}",
        "",
        f"`make bench-sparcml` on {about['processor']} for all ranks together; commit {about['commit']}; "
        f"{about['stolen']} of the cores' time stolen by the host; TCP's congestion control is "
        f"{runs[0]['congestion']}. N = {size:,} float32, one rank a node. benchmarks/sparcml/bench_sparcml.py "
        "describes what is measured, and how. Medians over rounds of the slowest rank.",
        "",
        "## Targets",
        "",
        *report.table(verdicts(rows, overlapped)),
        "",
        "## Which algorithm wins where (SparCML Fig. 3)",
        "",
        *_winners_table(rows),
        "",
        "## Beside a computation (SparCML section 7), ms",
        "",
        "The computation is on the cores that the collective needs; beside a wait, as for a GPU, they are free.",
        "",
        *_overlap_table(overlapped),
        "",
        "## All cells",
        "",
        "Bytes are those of one call; counted are the busiest node's, with packet headers, Horovod's control traffic "
        f"and the check of each call. Idle, the control traffic is, KB/s a node: {idle}.",
        "",
        "| ranks | link | density | index sets | arm | rounds | ms (p95) | times Horovod's dense | MB claimed "
        "| MB counted | ms of the link for what is claimed |",
        "|---" * 11 + "|",
    ]
    for row in rows:
        chosen = f" ({row['chosen']})" if row["chosen"] else ""
        lines.append(
            f"| {row['nodes']} | {row['rate']} | {_percent(row['density'])} | {row['sets']} | {row['arm']}{chosen} | "
            f"{row['rounds']} | {row['ms']:.1f} ({row['p95_ms']:.1f}) | {row['times_dense']:.2f} | "
            f"{row['claimed'] / 1e6:.3f} | {row['counted'] / 1e6:.3f} | {row['link_ms']:.1f} |"
        )
    return "\n".join([*lines, ""])


def _winners_table(rows: Sequence[dict]) -> list[str]:
    lines = [
        "| ranks | link | density | index sets | density of the sum | best | times Horovod's dense | second, slower by "
        "| auto chose | auto beyond the best it chooses from | of all | than that by itself | auto, A/A "
        "| Horovod, A/A |",
        "|---" * 14 + "|",
    ]
    for each in winners(rows):
        lines.append(
            f"| {each['nodes']} | {each['rate']} | {_percent(each['density'])} | {each['sets']} | "
            f"{_percent(each['union'])} | {each['best']} | {each['times_dense']:.1f} | {each['second']}, "
            f"{each['lead'] - 1:.0%} | {each['chosen']} | {each['regret']:+.1%} | {each['regret_of_all']:+.1%} | "
            f"{each['against_same']:+.1%} | {each['noise']:.1%} | {each['noise_of_dense']:.1%} |"
        )
    return lines


def _overlap_table(overlapped: Sequence[dict]) -> list[str]:
    if not overlapped:
        return ["Not measured."]
    arms = list(overlapped[0]["ms"])
    lines = [
        f"| ranks | link | density | collective | product | {' | '.join(arms)} | exposed | share of blocking "
        "| exposed, cores free | share of blocking |",
        "|---" * (9 + len(arms)) + "|",
    ]
    for each in overlapped:
        times = " | ".join(f"{each['ms'][arm]:.1f}" for arm in arms)
        rows, inner, columns = each["matmul"]
        lines.append(
            f"| {each['nodes']} | {each['rate']} | {_percent(each['density'])} | {each['collective']} | "
            f"{rows}x{inner} by {inner}x{columns} | {times} | {each['exposed_ms']:.1f} | {each['share']:.2f} | "
            f"{each['exposed_with_wait_ms']:.1f} | {each['share_with_wait']:.2f} |"
        )
    return lines


def draw(rows: Sequence[dict], path: str) -> None:
    """Plots milliseconds by ranks and by density, with a row of panels per link."""
    rates = list(dict.fromkeys(row["rate"] for row in rows))
    figure = Figure(figsize=(11, 4.4 * len(rates)), layout="constrained")
    axes = np.atleast_2d(figure.subplots(len(rates), 2))
    for (by_nodes, by_density), rate in zip(axes, rates, strict=True):
        shown = [row for row in rows if row["rate"] == rate and row["sets"] == "uniform" and "A/A" not in row["arm"]]
        common = _common_density(shown)
        swept = _swept_nodes(shown)
        _curves(by_nodes, [row for row in shown if row["density"] == common], "nodes")
        by_nodes.set(title=f"{rate}, density {_percent(common)}", xlabel="ranks", ylabel="ms")
        by_nodes.set_xscale("log", base=2)
        _curves(by_density, [row for row in shown if row["nodes"] == swept], "density")
        by_density.set(title=f"{rate}, {swept} ranks", xlabel="density", xscale="log")
        by_density.legend(fontsize="small")
    writing.save_picture(figure, path)


def _curves(axis: Any, rows: Sequence[dict], along: str) -> None:
    for arm in dict.fromkeys(row["arm"] for row in rows):
        points = sorted((row[along], row["ms"]) for row in rows if row["arm"] == arm)
        style = "k--" if arm in DENSE_ARMS else "o:" if arm == "auto" else "o-"
        axis.plot(*zip(*points, strict=True), style, label=arm)
    axis.set_yscale("log")
    axis.grid(alpha=0.3)


def _common_density(rows: Sequence[dict]) -> float:
    """The density that was measured with the most numbers of ranks."""
    by_density = {row["density"]: {each["nodes"] for each in rows if each["density"] == row["density"]} for row in rows}
    return max(by_density, key=lambda density: len(by_density[density]))


def _swept_nodes(rows: Sequence[dict]) -> int:
    """The number of ranks with which the most densities were measured."""
    by_nodes = {row["nodes"]: {each["density"] for each in rows if each["nodes"] == row["nodes"]} for row in rows}
    return max(by_nodes, key=lambda nodes: len(by_nodes[nodes]))
