"""Training throughput and where a step's time goes, ours against plain Horovod: `make bench-train`.

ResNet-50, VGG-19 and a Transformer of reduced size (models.py) train on synthetic batches, as in CommLib's Table 3.
Nodes are network namespaces behind shaped links (benchmarks/machines/cluster.py), so root is needed. Each arm has its
own model, optimizer and residuals. After a warm-up all arms train in turn, in blocks of a few steps:

- Horovod: horovod.tensorflow's DistributedGradientTape with its own tensor fusion, in a training step written by hand,
  as horovod.tensorflow.keras does not work with Keras 3. Ours use the same step with hvd_sparse's tape. All arms share
  processes, and so Horovod's default threshold; alone, ours would use that of hvd.init and be faster.
- import line alone: the same with `hvd.DistributedGradientTape(tape)`, as in a script that has changed only its import
  line: dense means, with no measurements.
- Horovod-fp16: with `compression=horovod.Compression.fp16`; recipes that end in "fp16" send values of 16 bits, too.
- Horovod, A/A: the same steps once more; the difference to the first arm is noise.
- no exchange: every rank updates by its own gradients, all ranks at the same time.
- recipes of hvd_sparse; those that take a density use --density.

Throughput is the number of samples of all ranks in a block divided by the slowest rank's seconds for it; shown are the
median, minimum and maximum over the blocks. Each block is also compared with Horovod's block of the same round: shown
are the median of these ratios and its 95% interval. Scaling efficiency is the throughput divided by that of "no
exchange". It differs from CommLib's, which divides by the speed of a single GPU: here all ranks share a few cores,
which a single rank would have to itself. So it shows what the exchange costs, and not what more ranks cost each other.

The breakdown is that of CommLib's Fig. 1: the elapsed time that no other part hides. Each rank reads one clock at the
boundaries of the parts, so they add up to the step; shown are means over ranks and steps:

- input wait: from asking tf.data for a batch until it arrives. Batches are made beforehand and two are prefetched, so
  this is the cost of the pipeline itself, without any file system.
- forward and backward: until all of the rank's own gradients are computed, embeddings as dense ones. Selecting and
  sending early buckets takes cores from it meanwhile and cannot be separated from it; without an exchange it is
  shorter.
- compression: the part of the time from there until all means have arrived in which at least one bucket is being
  selected (the sum of the parts, error feedback and selection are one kernel); another bucket may be on the wire at the
  same time.
- exposed communication: the rest of that time: concatenating gradients, waiting for slower ranks (also given
  separately), the collectives, adding received values, dividing. A rank that has to wait for a core waits in whatever
  part it is in: with more ranks than cores all parts contain such waiting.
- optimizer: until all variables are written and Python has the loss. Updates that finish before the last mean arrives
  are hidden, and not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.machines.cluster import Cluster, raw_rate, unavailable
from benchmarks.reporting import timing, writing
from benchmarks.train.breakdown import PARTS
from hvd_sparse.tuning import cache

MODELS = ("resnet50", "vgg19", "transformer")
RECIPES = ("dense", "torus2d", "torus2d-fp16", "topk", "hitopk")
FIRST = ("Horovod", "no exchange", "import line alone", "Horovod-fp16")
AGAIN = "Horovod, A/A"
HOROVOD_FUSION = str(128 * 2**20)  # bytes, its default
_RANK_LIMIT = 1500.0  # seconds for one model, shape and link


def measure(cluster: Cluster, job: dict[str, Any]) -> dict[str, Any]:
    """Trains one model with all arms on a cluster; returns the results of benchmarks/train/rank.py."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "job.json").write_text(json.dumps(job))
        files = [str(folder / "job.json"), str(folder / "results.json")]
        # Horovod's arm needs the default fusion threshold; the measurements of `auto` are kept for this cluster only.
        environment = {"HOROVOD_FUSION_THRESHOLD": HOROVOD_FUSION, cache.CACHE_VARIABLE: name}
        command = [sys.executable, "-m", "benchmarks.train.rank", *files]
        statuses = cluster.run(command, environment, limit=_RANK_LIMIT)
        if any(statuses):
            raise RuntimeError(f"the ranks that trained {job['model']} ended with {statuses}")
        return json.loads((folder / "results.json").read_text())


def measure_all(shape: tuple[int, int], rate: str, jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trains several models in sequence on a new cluster."""
    nodes, local = shape
    runs = []
    with Cluster(nodes, local, rate) as cluster:
        reached = raw_rate(cluster)
        print(f"{nodes}x{local}, {rate}: one connection reaches {reached / 1e6:,.0f} Mbit/s", flush=True)
        for job in jobs:
            results = measure(cluster, {"local": local, **job})
            runs.append({"shape": [nodes, local], "rate": rate, "reached": reached, **results})
            medians = ", ".join(f"{row['arm']} {row['samples/s']:.1f}" for row in rows_of(runs[-1:]))
            print(f"  {job['model']}: samples/s {medians}", flush=True)
    return runs


def rows_of(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per arm: throughput in samples/s, its ratio to Horovod's, efficiency, bytes per step and node, parts."""
    rows = []
    for run in runs:
        throughputs = {name: _throughputs(run, arm) for name, arm in run["arms"].items()}
        medians = {name: float(np.median(of_blocks)) for name, of_blocks in throughputs.items()}
        for name, arm in run["arms"].items():
            steps = run["block"] * len(arm["seconds"])
            across = arm["telemetry"].get("bytes_across")
            rows.append(
                {
                    "model": run["model"],
                    "shape": f"{run['shape'][0]}x{run['shape'][1]}",
                    "rate": run["rate"],
                    "arm": name,
                    "samples/s": medians[name],
                    "least": min(throughputs[name]),
                    "most": max(throughputs[name]),
                    "times Horovod": medians[name] / medians[FIRST[0]],
                    "paired": timing.paired_ratio(throughputs[name], throughputs[FIRST[0]]),
                    "efficiency": medians[name] / medians[FIRST[1]],
                    "counted": max(arm["sent"]) / steps,
                    "claimed": None if across is None else across * run["shape"][1],
                    "breakdown": arm["breakdown"],
                }
            )
    return rows


def _throughputs(run: dict[str, Any], arm: dict[str, Any]) -> list[float]:
    """Samples per second over all ranks, for each block."""
    samples = run["size"]["batch"] * math.prod(run["shape"]) * run["block"]
    return [samples / seconds for seconds in arm["seconds"]]


def render(runs: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> str:
    """The tables as Markdown."""
    about = timing.machine()
    lines = [
        f"# Training, {about['date']}",
        "",
        f"`make bench-train` on {about['processor']} for all ranks together; commit {about['commit']}; "
        f"{about['stolen']} of the cores' time stolen by the host. "
        "benchmarks/train/bench_train.py describes what is measured, and how. Efficiency is against the same step "
        "without any exchange by all ranks at the same time, not against one rank alone.",
        "",
        "| model | shape, link | parameters | size | density | blocks | peak memory of all ranks, GB |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        size = ", ".join(f"{key} {value}" for key, value in run["size"].items())
        blocks = len(run["arms"][FIRST[0]]["seconds"])
        lines.append(
            f"| {run['model']} | {_place(run)} | {run['parameters']:,} | {size} | {run['density']} | {blocks} of "
            f"{run['block']} steps | {run['memory'] / 1e9:.1f} |"
        )
    lines += [
        "",
        "## Throughput (CommLib Table 3)",
        "",
        "| model | shape, link | arm | samples/s (least to most) | times Horovod | block by block (95%) | efficiency | "
        "MB a step and node, claimed | counted |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        claimed = "" if row["claimed"] is None else f"{row['claimed'] / 1e6:.2f}"
        lines.append(
            f"| {row['model']} | {row['shape']}, {row['rate']} | {row['arm']} | {row['samples/s']:.1f} "
            f"({row['least']:.1f} to {row['most']:.1f}) | {row['times Horovod']:.2f} | {_interval(row['paired'])} | "
            f"{row['efficiency']:.0%} | {claimed} | {row['counted'] / 1e6:.2f} |"
        )
    lines += [
        "",
        "Counted bytes have packet headers and Horovod's control traffic in them. Idle, that is, KB/s a node: "
        + "; ".join(f"{run['model']} on {_place(run)}: {max(run['idle']) / 1e3:.0f}" for run in runs)
        + ".",
        "",
        "## Where a step's time goes (CommLib Fig. 1), ms",
        "",
        f"| model | shape, link | arm | {' | '.join(PARTS)} | step | of exposed: for slower ranks | selection in all, "
        "hidden included |",
        "|---" * (len(PARTS) + 6) + "|",
    ]
    for row in rows:
        columns = (*PARTS, "step", "for slower ranks", "selection in all")
        times = " | ".join(f"{1e3 * row['breakdown'][column]:.1f}" for column in columns)
        lines.append(f"| {row['model']} | {row['shape']}, {row['rate']} | {row['arm']} | {times} |")
    return "\n".join([*lines, ""])


def _interval(paired: tuple[float, float, float]) -> str:
    median, low, high = paired
    return f"{median:.3f}" if math.isinf(low) else f"{median:.3f} ({low:.3f} to {high:.3f})"


def _place(run: dict[str, Any]) -> str:
    return f"{run['shape'][0]}x{run['shape'][1]}, {run['rate']}"


def draw(rows: Sequence[dict[str, Any]], path: str) -> None:
    """Draws stacked bars, one per arm, with one panel per model, shape and link."""
    panels = list(dict.fromkeys((row["model"], row["shape"], row["rate"]) for row in rows))
    figure = Figure(figsize=(1.5 + 4.0 * len(panels), 4.6), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(panels)))
    for axis, panel in zip(axes, panels, strict=True):
        chosen = [row for row in rows if (row["model"], row["shape"], row["rate"]) == panel]
        names = [row["arm"] for row in chosen]
        bottom = np.zeros(len(chosen))
        for part in PARTS:
            heights = np.array([1e3 * row["breakdown"][part] for row in chosen])
            axis.bar(names, heights, bottom=bottom, label=part)
            bottom += heights
        axis.set_title(f"{panel[0]}, {panel[1]}, {panel[2]}")
        axis.tick_params(axis="x", rotation=60)
    axes[0].set_ylabel("ms a step")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize="small")
    writing.save_picture(figure, path)


def _names(text: str) -> list[str]:
    return text.split(",")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=_names, default=["2x2"], help="nodes x ranks (default: 2x2)")
    parser.add_argument("--rates", type=_names, default=["1gbit"], help="of the links (default: 1gbit)")
    parser.add_argument("--models", type=_names, default=list(MODELS), help=f"default: {','.join(MODELS)}")
    parser.add_argument(
        "--recipes", type=_names, default=list(RECIPES), help=f"of hvd_sparse (default: {','.join(RECIPES)})"
    )
    parser.add_argument("--density", type=float, default=0.01, help="of recipes that take one (default: 0.01)")
    parser.add_argument(
        "--steps", type=int, default=12, help="timed steps of each arm, in blocks of three (default: 12)"
    )
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    reason = unavailable()
    if reason is not None:
        sys.exit(reason)
    unknown = [model for model in options.models if model not in MODELS]
    if unknown:
        parser.error(f"expected models from {', '.join(MODELS)}, got {', '.join(unknown)}")
    arms = [*FIRST, *options.recipes, AGAIN]
    jobs = [
        {"model": model, "size": {}, "arms": arms, "density": options.density, "steps": options.steps}
        for model in options.models
    ]
    runs = []
    for text in options.shapes:
        nodes, local = map(int, text.split("x"))
        for rate in options.rates:
            runs += measure_all((nodes, local), rate, jobs)
    rows = rows_of(runs)
    text = render(runs, rows)
    print(text)
    if options.dry:
        return
    summary = {"machine": timing.machine(), "runs": writing.medians(runs), "rows": rows}
    stem = writing.write_results("train", summary, text, runs)
    draw(rows, f"{stem}.png")
    print(f"Written to {stem}.json, .md and .png")


if __name__ == "__main__":
    main()
