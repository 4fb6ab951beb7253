"""The whole exchange on emulated slow networks, ours against others': `make bench-exchange`.

A gradient goes in, its mean over all ranks comes out; selection, feedback and scatter included. Nodes are network
namespaces behind shaped links (benchmarks/cluster.py), so root is needed. In each cell all arms run in turn, every
result is checked, and the bytes that the nodes' interfaces have counted are reported. "A/A" is a second arm that does
what the first does: their difference is noise.

For each cell the floor is given: bytes on the link over its rate, plus bytes touched over the rate at which one core
reads memory.

Two rivals take part where they are installed: torch.distributed with Gloo (.venv/bin/pip install torch), and, with
--launcher mpirun, mpi4py (.venv/bin/pip install mpi4py). That launcher needs Open MPI (packages openmpi-bin and
libopenmpi-dev) and a Horovod built with it: make clean setup builds one where mpicxx is found. All of Horovod's arms
then go through MPI.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from benchmarks import mpirun, timing
from benchmarks.cluster import LAUNCHERS, Cluster, bits_per_second, raw_rate, unavailable
from hvd_sparse import costs, notebook

SIZES = {"1M": 10**6, "25M": 25 * 10**6, "110M": 110 * 10**6}
DENSITIES = (0.001, 0.01, 0.1)
WHOLE_GRID = "2x2,4x1,4x2@100mbit,1gbit,10gbit"
DENSE = ("horovod.allreduce", "horovod.allreduce, A/A", "dense", "torus2d", "2DTAR, literal")
SPARSE = ("topk", "mstopk", "hitopk", "auto", "NaiveAG, literal")
DENSE_ROUNDS, SPARSE_ROUNDS = 3, 5
_RANK_LIMIT = 1500.0  # seconds for one shape and link


class Target(NamedTuple):
    """What an arm should reach against another one, in the same cell."""

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


def others(launcher: str) -> list[str]:
    """Rivals that are installed; mpi4py finds the other ranks only where mpirun has started them."""
    found = []
    for module, arm in (("torch", "torch.distributed"), ("mpi4py", "mpi4py")):
        if arm == "mpi4py" and launcher != "mpirun":
            continue
        try:
            __import__(module)
        except ImportError:
            continue
        found.append(arm)
    return found


def cells_of(
    shape: tuple[int, int], rate: str, sizes: Sequence[str], densities: Sequence[float], rivals: Sequence[str]
) -> list[dict]:
    """The cells of one shape and link; dense arms take part at the first density only, as they do not depend on it."""
    cells = []
    for name in sizes:
        for number, density in enumerate(densities):
            slow = name == "110M" and rate == "100mbit"
            dense = [] if number else list(DENSE if not slow else DENSE[:1])
            if not number and not slow:
                dense += rivals
            sparse = (
                ["hitopk"] if slow else [arm for arm in SPARSE if not (arm == "NaiveAG, literal" and density > 0.01)]
            )
            rounds = {arm: DENSE_ROUNDS if not slow else 1 for arm in dense} | {arm: SPARSE_ROUNDS for arm in sparse}
            arms = [*dense, *sparse] + (["hitopk steps"] if shape[1] > 1 else [])
            cells.append({"name": name, "size": SIZES[name], "density": density, "arms": arms, "rounds": rounds})
    return cells


def measure(shape: tuple[int, int], rate: str, cells: list[dict], launcher: str) -> dict[str, Any]:
    """Runs the cells of one shape and link on a cluster of their own."""
    nodes, local = shape
    with tempfile.TemporaryDirectory() as name, Cluster(nodes, local, rate) as cluster:
        folder = pathlib.Path(name)
        reached = raw_rate(cluster)
        print(f"{nodes}x{local}, {rate}: one connection reaches {reached / 1e6:,.0f} Mbit/s", flush=True)
        job = {"local": local, "address": cluster.address(0), "port": 29500, "cells": cells}
        (folder / "job.json").write_text(json.dumps(job))
        command = [
            sys.executable,
            "-m",
            "benchmarks.exchange_rank",
            str(folder / "job.json"),
            str(folder / "results.json"),
        ]
        # What auto measures is kept for this cluster alone: the next one has the same addresses and other links.
        environment = {"GLOO_SOCKET_IFNAME": "eth0", notebook.CACHE_VARIABLE: name}
        statuses = cluster.run(command, environment, _RANK_LIMIT, launcher)
        if any(statuses):
            raise RuntimeError(f"the ranks of {nodes}x{local} at {rate} ended with {statuses}")
        results = json.loads((folder / "results.json").read_text())
    return {"shape": list(shape), "rate": rate, "reached": reached, **results}


def link_bytes(arm: str, size: int, density: float, nodes: int, local: int) -> float:
    """Payload bytes that a node must send; rivals are put to the recipe that they are."""
    recipe = {"NaiveAG, literal": "topk", "2DTAR, literal": "torus2d"}.get(arm, arm)
    return costs.link_bytes(recipe if recipe in costs.MODELS else "dense", nodes, local, size, density)


def floor_seconds(arm: str, cell: dict, run: dict, read_rate: float) -> float:
    """Bytes over the link's rate, plus the gradient read and the mean written by each rank of the two cores."""
    nodes, local = run["shape"]
    link = link_bytes(arm, cell["size"], cell["density"], nodes, local) * 8 / bits_per_second(run["rate"])
    touched = 8.0 * cell["size"] * nodes * local / 2  # all ranks share two cores
    return link + touched / read_rate


def predicted_seconds(arm: str, cell: dict, run: dict) -> float | None:
    """What the cost model says, with the constants that the planner measured; None for rivals without a model."""
    recipe = "dense" if arm == "horovod.allreduce" else arm
    if recipe not in costs.MODELS:
        return None
    nodes, local, inside, across, memory = run["cluster"]
    cluster = costs.Cluster(nodes, local, costs.Link(*inside), costs.Link(*across), memory)
    return costs.seconds(recipe, cluster, cell["size"], cell["density"])


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
    """One row an arm and cell."""
    rows = []
    for run in runs:
        for cell in run["cells"]:
            for arm, seconds in cell["seconds"].items():
                nodes, local = run["shape"]
                median, rounds = float(np.median(seconds)), len(seconds)
                ranks = nodes * local
                floor = floor_seconds(arm, cell, run, read_rate)
                predicted = predicted_seconds(arm, cell, run)
                claimed = link_bytes(arm, cell["size"], cell["density"], nodes, local)
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
                        "counted": max(cell["sent"][arm]) / rounds,
                        "floor_ms": 1e3 * floor,
                        "reached": floor / median,
                        "wrong": cell["wrong"][arm],
                        "model_ms": None if predicted is None else 1e3 * predicted,
                    }
                )
    return rows


def verdicts(rows: list[dict]) -> list[str]:
    """The targets, met or missed."""
    lines = ["| shape, link, density, d = 25M | what | wanted | measured | |", "|---|---|---|---|---|"]

    def find(target: Target, arm: str) -> float | None:
        shape = f"{target.shape[0]}x{target.shape[1]}"
        found = [
            row["ms"]
            for row in rows
            if (row["shape"], row["rate"], row["size"], row["arm"]) == (shape, target.rate, "25M", arm)
            and (arm in DENSE or row["density"] == target.density)
        ]
        return found[0] if found else None

    for target in TARGETS:
        ours, theirs = find(target, target.arm), find(target, target.than)
        if ours is None or theirs is None:
            continue
        ratio = theirs / ours
        cell = f"{target.shape[0]}x{target.shape[1]}, {target.rate}, {target.density}"
        verdict = "met" if ratio >= target.times else "**missed**"
        lines.append(f"| {cell} | {target.arm} against {target.than} | {target.times}x | {ratio:.1f}x | {verdict} |")
    return lines


def render(runs: list[dict], rows: list[dict], read_rate: float) -> str:
    """The tables as Markdown."""
    about = timing.machine()
    lines = [
        f"# The exchange, {about['date']}",
        "",
        f"`make bench-exchange` on {about['processor']} for all ranks together; commit {about['commit']}; one core "
        f"reads {read_rate / 1e9:.0f} GB/s. Medians of {DENSE_ROUNDS} rounds of dense arms, {SPARSE_ROUNDS} of others.",
        "",
        "Idle traffic of Horovod, KB/s a node: "
        + "; ".join(
            f"{run['shape'][0]}x{run['shape'][1]} at {run['rate']}: {max(run['idle']) / 1e3:.0f}" for run in runs
        )
        + ".",
        "",
        "## Targets",
        "",
        *verdicts(rows),
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
        lines.append(
            f"| {row['shape']} | {row['rate']} | {row['size']} | {row['density']} | {row['arm']}{wrong} | "
            f"{row['ms']:.1f} ({row['p95_ms']:.1f}) | {row['algbw']:.2f} | {row['busbw']:.2f} | {row['claimed'] / 1e6:.2f} | "
            f"{row['counted'] / 1e6:.2f} | {row['floor_ms']:.1f} | {row['reached']:.0%} | {model} |"
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
    """Milliseconds by density for 25M, one panel a shape and link."""
    shown = [row for row in rows if row["size"] == "25M"] or rows
    panels = sorted({(row["shape"], row["rate"]) for row in shown})
    figure = Figure(figsize=(4.2 * len(panels), 4), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(panels), sharey=True))
    for axis, panel in zip(axes, panels, strict=True):
        chosen = [row for row in shown if (row["shape"], row["rate"]) == panel]
        for arm in dict.fromkeys(row["arm"] for row in chosen):
            points = [(row["density"], row["ms"]) for row in chosen if row["arm"] == arm]
            if arm in SPARSE:
                axis.loglog(*zip(*points, strict=True), "o-", label=arm)
            elif "A/A" not in arm:
                axis.axhline(points[0][1], linestyle="--", label=arm, color=f"C{len(arm) % 10}")
        axis.set(title=f"{panel[0]}, {panel[1]}", xlabel="density")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("ms")
    axes[-1].legend(fontsize="small")
    figure.savefig(path, dpi=120)


def memory_rate() -> float:
    """Bytes per second at which one core reads memory."""
    from benchmarks.selection import Rivals, aligned

    rivals, x = Rivals(), aligned(25 * 10**6)
    taken = timing.interleave({"read": timing.Arm(lambda: rivals.read(x))}, 9, before=lambda: None)
    return x.nbytes / (1e-3 * taken["read"].median)


def without_mpi() -> str | None:
    """Why ranks that mpirun has started cannot exchange here, with the remedy; None where they can."""
    import horovod.tensorflow as horovod

    if mpirun.unavailable() is None and not horovod.mpi_built():
        return "Horovod was built without MPI: install the package libopenmpi-dev, then make clean setup."
    return mpirun.unavailable()


def _names(text: str) -> list[str]:
    return text.split(",")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--grid",
        action="append",
        metavar="SHAPES@RATES",
        help=f"nodes x ranks, and rates of the links; may be given again ({WHOLE_GRID})",
    )
    parser.add_argument("--sizes", type=_names, default=list(SIZES), help="of the gradient (1M,25M,110M)")
    parser.add_argument("--densities", type=_names, default=[str(density) for density in DENSITIES])
    parser.add_argument("--dry", action="store_true", help="write no results")
    parser.add_argument("--launcher", default="rendezvous", choices=LAUNCHERS, help="what starts ranks (rendezvous)")
    options = parser.parse_args()
    reason = unavailable() or (without_mpi() if options.launcher == "mpirun" else None)
    if reason is not None:
        sys.exit(reason)
    read_rate = memory_rate()
    runs = []
    densities = [float(density) for density in options.densities]
    for shapes, rates in (part.split("@") for part in options.grid or [WHOLE_GRID]):
        for text, rate in itertools.product(_names(shapes), _names(rates)):
            nodes, local = map(int, text.split("x"))
            cells = cells_of((nodes, local), rate, options.sizes, densities, others(options.launcher))
            runs.append(measure((nodes, local), rate, cells, options.launcher))
    rows = rows_of(runs, read_rate)
    text = render(runs, rows, read_rate)
    print(text)
    if options.dry:
        return
    stem = timing.write_results("exchange", {"machine": timing.machine(), "runs": runs, "rows": rows}, text)
    draw(rows, f"{stem}.png")
    print(f"Written to {stem}.json, .md and .png")


if __name__ == "__main__":
    main()
