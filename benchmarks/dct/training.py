"""DLRM on four ranks on slow links: `--questions training`, or the targets alone: python -m benchmarks.dct.training.

Four nodes of one rank are network namespaces behind shaped links (benchmarks/machines/cluster.py), so root is needed.
The model is that of Gupta et al. 2021 (3.1), with 26 tables of 4,096 embeddings; rows are synthetic, as time depends on
shapes alone. It is trained in two ways. As two trainers of two stages it is split after the second layer, and gradients
of embeddings are sent as rows in all arms. As four equal ranks with half a trainer's batch each, the rows of all tables
are sharded among them. All arms run in turn, in rounds, and are checked: the loss falls, and ranks agree on what they
should have in common. "A/A" is dense training once more.

Bytes are those counted by the interface of the busiest node. Of these, "split" are the payloads of activations and
their gradients, "embeddings" those of rows, their gradients and their indices, and "gradients" those of all other
variables, as telemetry reports them. "other" is the rest: headers, and the messages by which Horovod's ranks agree
every millisecond on what to exchange: a longer step has more of them. Network and processor utilisation are
shares of the link's rate and of one core, with four ranks on two cores.

The time that the bytes allow is that of dense training less the link's time for the bytes saved.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.machines.cluster import Cluster, bits_per_second, unavailable
from benchmarks.reporting import report, timing
from benchmarks.reporting.report import Section, Verdict

TRAINERS, STAGES = 2, 2
RATES = ("100mbit", "1gbit")
BATCHES = (128, 1024)
DENSE, AGAIN, OURS = "dense", "dense, A/A", "90% and 99%"
SHARDED, OUR_SHARDED = "sharded tables, dense", "sharded tables, 99%"
KINDS = ("split", "embeddings", "gradients", "other")
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


@dataclasses.dataclass(frozen=True)
class Sharded:
    """How the model is trained with tables whose rows lie on all ranks.

    Attributes:
        name: of the arm.
        row_wire: dtype of embeddings and their gradients on the way.
        density: of all other gradients; None sends all.
    """

    name: str
    row_wire: str = "float32"
    density: float | None = None


ARMS: tuple[Arm | Sharded, ...] = (
    Arm(DENSE),
    Arm(AGAIN),
    Arm("float16 activations", wire="float16"),
    Arm("int8 activations", wire="int8"),
    Arm("int4 activations", wire="int4"),
    Arm("90% of activations", sparsity=0.9),
    Arm("99% of gradients", density=0.01),
    Arm(OURS, sparsity=0.9, density=0.01),
    Arm(f"{OURS}, float16", sparsity=0.9, wire="float16", density=0.01),
    Sharded(SHARDED),
    Sharded(OUR_SHARDED, density=0.01),
    Sharded(f"{OUR_SHARDED}, float16 rows", "float16", density=0.01),
)
OF_TARGETS = tuple(arm for arm in ARMS if arm.name in (DENSE, AGAIN, OURS, SHARDED, OUR_SHARDED))


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Section:
    """Runs all arms on each link with batches of each size."""
    rates, batches = (RATES[:1], BATCHES[:1]) if options.quick else (RATES, BATCHES)
    return measured(ARMS, rates, batches, *((2, 2) if options.quick else (7, 10)), say)


def measured(
    arms: Sequence[Arm | Sharded],
    rates: Sequence[str],
    batches: Sequence[int],
    rounds: int,
    steps: int,
    say: Callable[[str], None],
) -> Section:
    """Runs some arms for `rounds` rounds of `steps` steps."""
    why = unavailable()
    if why:
        return Section("Training on slow links", [f"Not measured: {why}"], {}, [])
    cells, lines, verdicts = {}, [], []
    for rate in rates:
        for batch in batches:
            say(f"{rate}, batches of {batch}")
            cell = summarised(arms, run(arms, rate, batch, rounds, steps), bits_per_second(rate), batch)
            cells[f"{rate}, {batch}"] = cell
            lines += [f"{rate}, batches of {batch} rows a trainer:", "", *_table(cell), ""]
            verdicts += _verdicts(rate, batch, cell)
    return Section("Training on slow links", lines, cells, verdicts)


def run(arms: Sequence[Arm | Sharded], rate: str, batch: int, rounds: int, steps: int) -> list[dict[str, Any]]:
    """The results of all ranks in each arm of each round."""
    named = {arm.name: dataclasses.asdict(arm) for arm in arms}
    order = [[named[name] for name in timing.shuffled(named, number)] for number in range(rounds)]
    job = {"trainers": TRAINERS, "stages": STAGES, "batch": batch, "micro": 2, "steps": steps, "rounds": order}
    with tempfile.TemporaryDirectory() as name, Cluster(TRAINERS * STAGES, 1, rate) as cluster:
        folder = pathlib.Path(name)
        (folder / "job.json").write_text(json.dumps(job))
        files = [str(folder / "job.json"), str(folder / "results.json")]
        statuses = cluster.run([sys.executable, "-m", "benchmarks.dct.rank", *files], _ENVIRONMENT, _LIMIT)
        if any(statuses):
            raise RuntimeError(f"the ranks at {rate} ended with {statuses}")
        return json.loads((folder / "results.json").read_text())


def summarised(
    arms: Sequence[Arm | Sharded], results: Sequence[dict[str, Any]], rate: float, batch: int
) -> dict[str, dict[str, Any]]:
    """By arm: samples per second of each round, and what a step costs."""
    cell: dict[str, dict[str, Any]] = {}
    for arm in (each.name for each in arms):
        rounds = [result["ranks"] for result in results if result["arm"] == arm]
        seconds = [max(rank["seconds"] / rank["steps"] for rank in ranks) for ranks in rounds]
        busiest = [max(ranks, key=lambda rank: rank["counted"]) for ranks in rounds]
        kinds = [_by_kind(rank) for rank in busiest]
        counted = [sum(each.values()) for each in kinds]
        busy = [np.mean([rank["processor"] / rank["seconds"] for rank in ranks]) for ranks in rounds]
        used = [np.mean([rank["processor"] / rank["steps"] for rank in ranks]) for ranks in rounds]
        cell[arm] = {
            "samples_per_second": [TRAINERS * batch / each for each in seconds],
            "seconds": seconds,
            "bytes": float(np.median(counted)),
            **{kind: float(np.median([each[kind] for each in kinds])) for kind in KINDS},
            "network": float(np.median([8 * c / s / rate for c, s in zip(counted, seconds, strict=True)])),
            "processor": float(np.median(busy)),
            "processor_seconds": float(np.median(used)),
        }
    return cell


def _by_kind(rank: dict[str, Any]) -> dict[str, float]:
    """The bytes that a node sends in a step, by kind."""
    *reported, rest = KINDS
    told = {kind: rank[kind] / rank["steps"] for kind in reported}
    return {**told, rest: rank["counted"] / rank["steps"] - sum(told.values())}


def allowed(cell: dict[str, dict[str, Any]], dense: str, ours: str, rate: float) -> float:
    """The speed-up over a dense arm that the saved bytes allow on a link of this rate."""
    seconds = float(np.median(cell[dense]["seconds"]))
    saved = 8 * (cell[dense]["bytes"] - cell[ours]["bytes"]) / rate
    return seconds / max(seconds - saved, 8 * cell[ours]["bytes"] / rate)


def _table(cell: dict[str, dict[str, Any]]) -> list[str]:
    head = [
        "| | samples/s | against dense | KB sent a step | split | embeddings | gradients | other | network | "
        "processor | ms of it a step |"
    ]
    rows = []
    for name, told in cell.items():
        middle, low, high = timing.paired_ratio(cell[DENSE]["seconds"], told["seconds"])
        speed = f"{np.median(told['samples_per_second']):,.0f} | {middle:.2f} ({low:.2f} to {high:.2f})"
        sent = " | ".join(f"{told[kind] / 1e3:,.0f}" for kind in ("bytes", *KINDS))
        used = f"{told['network']:.0%} | {told['processor']:.0%} | {1e3 * told['processor_seconds']:.0f}"
        rows.append(f"| {name} | {speed} | {sent} | {used} |")
    return [*head, "|" + "---|" * 11, *rows]


def _verdicts(rate: str, batch: int, cell: dict[str, dict[str, Any]]) -> list[Verdict]:
    pairs = [(DENSE, OURS), (SHARDED, OUR_SHARDED)]
    return [_verdict(rate, batch, cell, dense, ours) for dense, ours in pairs]


def _verdict(rate: str, batch: int, cell: dict[str, dict[str, Any]], dense: str, ours: str) -> Verdict:
    """On a slow link a speed-up, with large batches what the bytes allow; on a fast one it is not to be slower."""
    middle, low, high = timing.paired_ratio(cell[dense]["seconds"], cell[ours]["seconds"])
    what, found = f"samples a second, {ours} against {dense}, {rate}, batches of {batch}", f"{middle:.2f}"
    if rate != RATES[0]:
        wanted, target = 1.0, ">= 1"
    elif batch == BATCHES[0]:
        wanted, target = 2.5, ">= 2.5"
    else:
        bytes_allow = allowed(cell, dense, ours, bits_per_second(rate))
        wanted, target = 0.9 * bytes_allow, f">= .9 of the {bytes_allow:.2f} that the bytes allow"
    return Verdict(what, target, f"{found} ({low:.2f} to {high:.2f})", middle >= wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default=",".join(RATES), help=f"of the links (default: {','.join(RATES)})")
    parser.add_argument(
        "--batches", default=",".join(map(str, BATCHES)), help="rows of a trainer's batch (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds of all arms in turn (default: 7)")
    parser.add_argument("--steps", type=int, default=6, help="steps per arm and round (default: 6)")
    options = parser.parse_args()
    rates, batches = options.rates.split(","), [int(each) for each in options.batches.split(",")]
    began = time.perf_counter()
    section = measured(OF_TARGETS, rates, batches, options.rounds, options.steps, lambda line: print(line, flush=True))
    command = " ".join(["python -m benchmarks.dct.training", *sys.argv[1:]])
    made = report.made(timing.machine(), time.perf_counter() - began, command)
    print(report.of_questions("DLRM on slow links", [report.Answer(section, made)]))


if __name__ == "__main__":
    main()
