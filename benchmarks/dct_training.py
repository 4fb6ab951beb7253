"""DLRM as two trainers of two stages, on slow links: `--questions training`.

Four nodes of one rank, network namespaces behind shaped links (benchmarks/cluster.py), so root is needed. The model is
that of Gupta et al. 2021 (3.1), split after the second layer, with 26 tables of 4,096 embeddings; rows are made up, as
time depends on shapes alone. Gradients of embeddings travel as rows in all arms. All arms run in turn, in rounds, and
are checked: the loss falls, and both trainers have the same weights. "A/A" is dense once more.

Bytes are those that a node's interface has counted, the busiest node's; "split" are the payloads of activations and
their gradients. Network and processor utilisation are shares of the link's rate and of one core, at four ranks on two
cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.cluster import Cluster, bits_per_second, unavailable
from benchmarks.report import Section, Verdict

TRAINERS, STAGES = 2, 2
RATES = ("100mbit", "1gbit")
BATCHES = (128, 1024)
DENSE, AGAIN, OURS = "dense", "dense, A/A", "90% and 99%"
_LIMIT = 900.0
_ENVIRONMENT = {"HOROVOD_CYCLE_TIME": "1"}


@dataclasses.dataclass(frozen=True)
class Arm:
    """How the model is trained.

    Attributes:
        name: of the arm.
        sparsity: of activations at the split.
        wire: dtype of their values there.
        density: of gradients among trainers; None sends all.
    """

    name: str
    sparsity: float = 0.0
    wire: str = "float32"
    density: float | None = None


ARMS = (
    Arm(DENSE),
    Arm(AGAIN),
    Arm("float16 activations", wire="float16"),
    Arm("int8 activations", wire="int8"),
    Arm("90% of activations", sparsity=0.9),
    Arm("99% of gradients", density=0.01),
    Arm(OURS, sparsity=0.9, density=0.01),
    Arm(f"{OURS}, float16", sparsity=0.9, wire="float16", density=0.01),
)


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Section:
    """Runs all arms on each link with batches of each size."""
    why = unavailable()
    if why:
        return Section("Training on slow links", [f"Not measured: {why}"], {}, [])
    rounds, steps = (2, 2) if options.quick else (7, 10)
    cells, lines, verdicts = {}, [], []
    for rate in RATES[:1] if options.quick else RATES:
        for batch in BATCHES[:1] if options.quick else BATCHES:
            say(f"{rate}, batches of {batch}")
            cell = summarised(run(rate, batch, rounds, steps), bits_per_second(rate), batch)
            cells[f"{rate}, {batch}"] = cell
            lines += [f"{rate}, batches of {batch} rows a trainer:", "", *_table(cell), ""]
            verdicts += _verdicts(rate, batch, cell)
    return Section("Training on slow links", lines, cells, verdicts)


def run(rate: str, batch: int, rounds: int, steps: int) -> list[dict[str, Any]]:
    """What all ranks have done in each arm of each round."""
    arms = {arm.name: dataclasses.asdict(arm) for arm in ARMS}
    order = [[arms[name] for name in timing.shuffled(arms, number)] for number in range(rounds)]
    job = {"trainers": TRAINERS, "stages": STAGES, "batch": batch, "micro": 2, "steps": steps, "rounds": order}
    with tempfile.TemporaryDirectory() as name, Cluster(TRAINERS * STAGES, 1, rate) as cluster:
        folder = pathlib.Path(name)
        (folder / "job.json").write_text(json.dumps(job))
        files = [str(folder / "job.json"), str(folder / "results.json")]
        statuses = cluster.run([sys.executable, "-m", "benchmarks.dct_rank", *files], _ENVIRONMENT, _LIMIT)
        if any(statuses):
            raise RuntimeError(f"the ranks at {rate} ended with {statuses}")
        return json.loads((folder / "results.json").read_text())


def summarised(results: Sequence[dict[str, Any]], rate: float, batch: int) -> dict[str, dict[str, Any]]:
    """By arm: samples a second of each round, and what a step costs."""
    cell: dict[str, dict[str, Any]] = {}
    for arm in (each.name for each in ARMS):
        rounds = [result["ranks"] for result in results if result["arm"] == arm]
        seconds = [max(rank["seconds"] / rank["steps"] for rank in ranks) for ranks in rounds]
        counted = [max(rank["counted"] / rank["steps"] for rank in ranks) for ranks in rounds]
        split = [sum(rank["split"] / rank["steps"] for rank in ranks) / TRAINERS for ranks in rounds]
        busy = [np.mean([rank["processor"] / rank["seconds"] for rank in ranks]) for ranks in rounds]
        cell[arm] = {
            "samples_per_second": [TRAINERS * batch / each for each in seconds],
            "seconds": seconds,
            "bytes": float(np.median(counted)),
            "split": float(np.median(split)),
            "network": float(np.median([8 * c / s / rate for c, s in zip(counted, seconds, strict=True)])),
            "processor": float(np.median(busy)),
        }
    return cell


def _table(cell: dict[str, dict[str, Any]]) -> list[str]:
    head = ["| | samples/s | against dense | KB sent a step | KB of them at the split | network | processor |"]
    rows = []
    for name, told in cell.items():
        middle, low, high = timing.paired_ratio(cell[DENSE]["seconds"], told["seconds"])
        speed = f"{np.median(told['samples_per_second']):,.0f} | {middle:.2f} ({low:.2f} to {high:.2f})"
        sent = f"{told['bytes'] / 1e3:,.0f} | {told['split'] / 1e3:,.0f}"
        rows.append(f"| {name} | {speed} | {sent} | {told['network']:.0%} | {told['processor']:.0%} |")
    return [*head, "|---|---|---|---|---|---|---|", *rows]


def _verdicts(rate: str, batch: int, cell: dict[str, dict[str, Any]]) -> list[Verdict]:
    if batch != BATCHES[0]:
        return []
    middle, low, high = timing.paired_ratio(cell[DENSE]["seconds"], cell[OURS]["seconds"])
    wanted = 2.5 if rate == RATES[0] else 1.0
    what = f"samples a second, {OURS} against dense, {rate}, batches of {batch}"
    return [Verdict(what, f">= {wanted}", f"{middle:.2f} ({low:.2f} to {high:.2f})", middle >= wanted)]
