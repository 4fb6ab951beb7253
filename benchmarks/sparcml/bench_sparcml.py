"""SparCML's collectives against each other and Horovod's dense all-reduce, as in its Fig. 3: `make bench-sparcml`.

Vectors have 2^24 float32 elements, of which each rank contributes some rows; index sets are uniform unless stated
otherwise. Time is measured against the number of ranks at a density of 0.781%, and against the density. Nodes of one
rank are network namespaces behind shaped links (benchmarks/machines/cluster.py), so root is needed. An arm is one call
in eager code, from existing tf.IndexedSlices with ascending indices to the result. For Horovod's dense all-reduce the
dense vector already exists, and making it is not counted. "horovod, slices" is horovod.allreduce of the slices, which
gathers values and indices and combines nothing. Auto has tried its candidates before, in eight calls. In each cell all
arms take turns, every result is checked, and the bytes counted by the nodes' interfaces are reported. "A/A" is a second
copy of the first arm; the difference between them is noise.

The last part measures what a background collective costs beside a computation of the same length (section 7): 2 ranks,
tf.matmul with as many rows as take that long, one TensorFlow thread per rank. Exposed time is the time of both together
less that of the computation alone.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.machines.cluster import Cluster, bits_per_second, raw_rate, unavailable
from benchmarks.reporting import timing, writing
from benchmarks.sparcml.report import (
    AUTO_AGAIN,
    DENSE_ARMS,
    FIXED,
    HOROVOD_SLICES,
    draw,
    overlaps_of,
    render,
    rows_of,
)
from hvd_sparse.tuning import cache

FIG_3 = 1 / 128  # 0.781%
_MANY = 0.1  # density above which every arm takes as long as a dense one
_OVERLAP_NODES = 2
_TRIES = 8  # calls in which auto tries each of its four candidates twice
_RANK_LIMIT = 900.0  # seconds for one number of nodes


class Plan(NamedTuple):
    """What to measure.

    Attributes:
        size: N, rows of the vector.
        nodes: numbers P of nodes of one rank, at the density of Fig. 3.
        densities: measured on `swept` nodes.
        swept: number of nodes on which densities vary.
        identical: density of a cell with the same index sets on all ranks; at half of all rows, the most that
            are sent sparse, splitting costs as much as with dense rows.
        rounds: for arms that take milliseconds, and for those that take as long as a dense one.
        overlaps: collectives and densities to run beside a computation.
    """

    size: int
    nodes: Sequence[int]
    densities: Sequence[float]
    swept: int
    identical: float
    rounds: tuple[int, int]
    overlaps: Sequence[tuple[str, float]]


WHOLE = Plan(
    size=2**24,
    nodes=(2, 4, 8),
    densities=(0.0001, 0.001, FIG_3, 1 / 32, 1 / 8, 1.0),
    swept=4,
    identical=0.5,
    rounds=(20, 7),
    overlaps=(
        ("recursive_doubling", FIG_3),
        ("split_allgather", FIG_3),
        ("dynamic", FIG_3),
        ("recursive_doubling", 1 / 8),
    ),
)
QUICK = WHOLE._replace(
    size=2**22, nodes=(2, 4), densities=(0.001, FIG_3, 1.0), rounds=(6, 2), overlaps=WHOLE.overlaps[:2]
)


def cells_of(plan: Plan, nodes: int) -> list[dict[str, Any]]:
    """The cells for one number of nodes."""
    cells = [_cell(plan, density, "uniform") for density in (plan.densities if nodes == plan.swept else [])]
    if nodes in plan.nodes and all(cell["density"] != FIG_3 for cell in cells):
        cells.append(_cell(plan, FIG_3, "uniform"))
    if nodes == plan.swept:
        cells.append(_cell(plan, plan.identical, "identical"))
    return cells


def _cell(plan: Plan, density: float, sets: str) -> dict[str, Any]:
    """One cell; Horovod's gather of slices, which grows with the ranks, is left out if ranks have many rows."""
    often, seldom = plan.rounds
    many = density >= _MANY
    arms = [*DENSE_ARMS, *FIXED, "auto", AUTO_AGAIN, *([] if many else [HOROVOD_SLICES])]
    slow = (*DENSE_ARMS, "dense_ring", "dynamic", HOROVOD_SLICES)  # the last one is slow to check
    rounds = {arm: seldom if many or arm in slow else often for arm in arms}
    cell = {"size": plan.size, "density": density, "sets": sets, "rounds": rounds, "warm": 1 if many else 2}
    return {**cell, "tries": _TRIES}


def measure(nodes: int, rate: str, cells: list[dict[str, Any]], overlaps: list[dict[str, Any]]) -> dict[str, Any]:
    """Runs cells and overlaps on a new cluster.

    Args:
        nodes: number of nodes, of one rank each.
        rate: rate of their links, in tc's notation.
        cells: each {"size", "density", "sets", "rounds": {arm: rounds}, "warm": rounds before these, "tries": calls of
            auto before all}.
        overlaps: each {"size", "density", "collective", "rounds"}.

    Returns:
        What rank 0 of benchmarks/sparcml/rank.py writes, and what it was measured on.

    Raises:
        RuntimeError: if a rank fails, as it does when a result is wrong.
    """
    with tempfile.TemporaryDirectory() as name, Cluster(nodes, 1, rate) as cluster:
        folder = pathlib.Path(name)
        reached = raw_rate(cluster)
        print(f"{nodes} ranks, {rate}: one connection reaches {reached / 1e6:,.0f} Mbit/s", flush=True)
        (folder / "job.json").write_text(json.dumps({"cells": cells, "overlaps": overlaps}))
        files = [str(folder / "job.json"), str(folder / "results.json")]
        # Link measurements are kept for this cluster only: the next one has the same addresses and other links.
        environment = {cache.CACHE_VARIABLE: name}
        command = [sys.executable, "-m", "benchmarks.sparcml.rank", *files]
        statuses = cluster.run(command, environment, _RANK_LIMIT)
        if any(statuses):
            raise RuntimeError(f"the {nodes} ranks ended with {statuses}")
        results = json.loads((folder / "results.json").read_text())
    return {"nodes": nodes, "rate": rate, "reached": reached, "congestion": cluster.congestion, **results}


def measure_all(plan: Plan, rates: Sequence[str], dry: bool) -> str:
    """Measures everything, one number of nodes after another; returns the report."""
    runs: list[dict[str, Any]] = []
    text = ""
    for rate in rates:
        for nodes in sorted({*plan.nodes, plan.swept, _OVERLAP_NODES}):
            overlaps = [
                {"size": plan.size, "collective": collective, "density": density, "rounds": plan.rounds[0]}
                for collective, density in (plan.overlaps if nodes == _OVERLAP_NODES else ())
            ]
            runs.append(measure(nodes, rate, cells_of(plan, nodes), overlaps))
            rows, overlapped = rows_of(runs), overlaps_of(runs)
            text = render(runs, rows, overlapped)
            if not dry:  # after each, so that a later failure loses nothing
                write(runs, rows, overlapped, text)
    return text


def write(runs: list[dict], rows: list[dict], overlapped: list[dict], text: str) -> None:
    """Writes the results so far as JSON, Markdown and a picture."""
    known = ("nodes", "rate", "reached", "congestion", "idle")
    links = [{key: run[key] for key in known} for run in runs]
    data = {"machine": timing.machine(), "links": links, "rows": writing.columns(rows), "overlaps": overlapped}
    stem = writing.write_results("sparcml", data, text, runs)
    draw(rows, f"{stem}.png")
    print(f"Written to {stem}.json, .md and .png", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1gbit", help="of the links, comma-separated (default: 1gbit)")
    parser.add_argument(
        "--swept", type=int, default=4, help="number of ranks for which the density varies (default: 4)"
    )
    parser.add_argument("--quick", action="store_true", help="two minutes: short vectors, few cells; writes no results")
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    reason = unavailable()
    if reason is not None:
        sys.exit(reason)
    rates = options.rates.split(",")
    try:
        for rate in rates:
            bits_per_second(rate)
    except ValueError as error:
        parser.error(str(error))
    if options.swept < 2:
        parser.error(f"expected --swept of at least 2 ranks, got {options.swept}")
    plan = (QUICK if options.quick else WHOLE)._replace(swept=options.swept)
    print(measure_all(plan, rates, options.dry or options.quick))


if __name__ == "__main__":
    main()
