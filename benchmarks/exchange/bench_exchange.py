"""The whole exchange on emulated slow networks, ours against others': `make bench-exchange`.

An exchange takes a gradient and returns its mean over all ranks, selection, error feedback and scatter included. Nodes
are network namespaces behind shaped links (benchmarks/machines/cluster.py), so root is needed. In each cell all arms
run in turn, every result is checked, and the bytes counted by the nodes' interfaces are reported. "A/A" is a second
copy of the first arm; the difference between them is noise. "fp16" arms send values of 16 bits: Horovod's by its
`Compression.fp16`.

Each cell also gives the floor: bytes on the link divided by its rate, plus bytes touched divided by the rate at which
one core reads memory.

Two rivals take part if they are installed: torch.distributed with Gloo (.venv/bin/pip install torch), and, with
--launcher mpirun, mpi4py (.venv/bin/pip install mpi4py). That launcher needs Open MPI (packages openmpi-bin and
libopenmpi-dev) and a Horovod built with it: make clean setup builds one if mpicxx is found. All of Horovod's arms then
use MPI.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import psutil

from benchmarks.exchange.arms import SPARSE
from benchmarks.exchange.report import DENSE, DENSE_ROUNDS, SPARSE_ROUNDS, draw, render, rows_of
from benchmarks.machines import mpirun
from benchmarks.machines.cluster import LAUNCHERS, Cluster, raw_rate, unavailable
from benchmarks.reporting import timing, writing
from hvd_sparse.tuning import cache

SIZES = {"1M": 10**6, "25M": 25 * 10**6, "110M": 110 * 10**6}
DENSITIES = (0.001, 0.01, 0.1)
WHOLE_GRID = "2x2,4x1,4x2@100mbit,1gbit,10gbit"
LITERAL = ("2DTAR, literal", "NaiveAG, literal")
WARM = 5  # rounds that do not count
BRIEF_ROUNDS = {"1gbit": 48, "10gbit": 144}  # of all arms, where a dense exchange takes milliseconds
SPARSE_SHORT = 2  # times as many rounds of a sparse recipe
_RANK_LIMIT = 1500.0  # seconds for one shape and link
# What a rank's memory has to hold, in vectors of the gradient's size: gradient, its pieces, mean and what is checked;
# and for an arm that keeps something from round to round two residuals, the old and the new, and what it works on. Ours
# that send all of it have no residual, but outputs that their kernels use again, and shared memory.
_PASSING, _KEPT = 5, 3
_KEEPING = (*SPARSE, "dense", "torus2d", "torus2d-fp16")
_PROCESS = 0.35e9  # bytes of a rank without any vector
_SPARE = 1.5e9  # bytes of the machine that are left alone


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
    shape: tuple[int, int],
    rate: str,
    sizes: Sequence[str],
    densities: Sequence[float],
    rivals: Sequence[str],
    left_out: Sequence[str] = (),
) -> list[dict]:
    """The cells of one shape and link.

    Dense arms do not depend on the density: they take part at the first only, but for those that take milliseconds. For
    them the machine's speed differs more from one cell to the next than one arm from another.
    """
    cells = []
    for name in sizes:
        for number, density in enumerate(densities):
            arms = _arms_of(name, rate, density, rivals if number == 0 else None)
            arms = [arm for arm in arms if arm not in left_out]
            rounds = {arm: _rounds(arm, name, rate, density) for arm in arms}
            cell = {"name": name, "size": SIZES[name], "density": density, "rounds": rounds}
            cell["warm"] = {arm: _warm(arm, name, rate, density) for arm in arms}
            cells.append({**cell, "steps": shape[1] > 1})
    return cells


def _rounds(arm: str, name: str, rate: str, density: float) -> int:
    """How often an arm is timed."""
    if _endless(name, rate) and arm not in SPARSE:
        return 1
    sparse = arm in SPARSE and arm not in LITERAL
    often = SPARSE_ROUNDS if sparse else DENSE_ROUNDS
    if name == "110M" or _lasting(arm, name, rate, density):
        return often
    if _brief(name, rate):
        return BRIEF_ROUNDS[rate]
    return SPARSE_SHORT * often if sparse else often


def _warm(arm: str, name: str, rate: str, density: float) -> int:
    """How many rounds do not count, before: what an arm keeps from round to round is only there after a few."""
    if _endless(name, rate) and arm not in SPARSE:
        return 0  # of a minute, the first round's allocations are nothing
    lasting = _lasting(arm, name, rate, density) or (name == "110M" and arm in DENSE)
    return 1 if arm in LITERAL or lasting else WARM


def _arms_of(name: str, rate: str, density: float, rivals: Sequence[str] | None) -> list[str]:
    """Who takes part in a cell; rivals is None after the first of a size."""
    if _endless(name, rate):
        return ["hitopk"] if rivals is None else [DENSE[0], "hitopk"]
    if rivals is None:
        dense = [arm for arm in DENSE if arm not in LITERAL] if _brief(name, rate) else []
    else:
        dense = [*DENSE, *rivals]
    arms = [*dense, *SPARSE]
    # The literal ones take minutes where a link is slow or a vector long, and their selection where k is large.
    return [
        arm
        for arm in arms
        if arm not in LITERAL or (name != "110M" and rate != "100mbit" and (arm in DENSE or density <= 0.01))
    ]


def _lasting(arm: str, name: str, rate: str, density: float) -> bool:
    """Whether an exchange takes so many seconds that its first allocations are little of them."""
    return rate == "100mbit" and name != "1M" and (arm not in SPARSE or density >= 0.1)


def _brief(name: str, rate: str) -> bool:
    """Whether a dense exchange takes milliseconds."""
    return name == "1M" and rate in BRIEF_ROUNDS


def _endless(name: str, rate: str) -> bool:
    """Whether a dense exchange takes a minute and more."""
    return name == "110M" and rate == "100mbit"


def groups_of(arms: Sequence[str], size: int, ranks: int, available: float) -> list[list[str]]:
    """Arms that are timed in turn: all of them where the machine's memory holds what they keep, else in groups.

    Args:
        arms: by name, in order.
        size: elements of the gradient.
        ranks: of this machine.
        available: bytes of memory.

    Returns:
        Lists of arms; none if there is not room for one.
    """
    vectors = ((available - _SPARE) / ranks - _PROCESS) / (4 * size)
    kept_at_once = int((vectors - _PASSING) // _KEPT)
    if kept_at_once < 1:
        return []
    groups: list[list[str]] = [[]]
    for arm in arms:
        if arm in _KEEPING and sum(each in _KEEPING for each in groups[-1]) == kept_at_once:
            groups.append([])
        groups[-1].append(arm)
    return groups


def measure(shape: tuple[int, int], rate: str, cells: list[dict], launcher: str) -> dict[str, Any]:
    """Runs the cells of one shape and link on a cluster of their own."""
    nodes, local = shape
    cells = [cell for cell in cells if _fits(cell, nodes * local)]
    with tempfile.TemporaryDirectory() as name, Cluster(nodes, local, rate) as cluster:
        folder = pathlib.Path(name)
        reached = raw_rate(cluster)
        told = f"one connection reaches {reached / 1e6:,.0f} Mbit/s ({cluster.congestion})"
        print(f"{nodes}x{local}, {rate}: {told}", flush=True)
        job = {"local": local, "address": cluster.address(0), "port": 29500}
        files = [str(folder / "job.json"), str(folder / "results.json")]
        command = [sys.executable, "-m", "benchmarks.exchange.rank", *files]
        # What auto measures is kept for this cluster alone: the next one has the same addresses and other links.
        environment = {"GLOO_SOCKET_IFNAME": "eth0", cache.CACHE_VARIABLE: name}
        parts = []
        for together in launches(cells):
            (folder / "job.json").write_text(json.dumps({**job, "cells": together}))
            statuses = cluster.run(command, environment, _RANK_LIMIT, launcher)
            if any(statuses):
                raise RuntimeError(f"the ranks of {nodes}x{local} at {rate} ended with {statuses}")
            parts.append(json.loads((folder / "results.json").read_text()))
        measurements = [json.loads(path.read_text()) for path in folder.glob("clusters/*.json")]
    about: dict[str, Any] = {"shape": list(shape), "rate": rate, "reached": reached, "congestion": cluster.congestion}
    about["measurements"] = measurements  # each round of what auto has tried
    done = sorted((cell for part in parts for cell in part["cells"]), key=lambda cell: (cell["size"], cell["density"]))
    return {**about, **parts[0], "cells": done}


def launches(cells: Sequence[dict]) -> list[list[dict]]:
    """Cells that share the ranks of one start, then those whose arms fill the memory, each with ranks of its own."""
    small = [cell for cell in cells if len(cell["groups"]) == 1]
    return [small, *([cell] for cell in cells if len(cell["groups"]) > 1)]


def _fits(cell: dict, ranks: int) -> bool:
    """Divides the arms of a cell into groups; says so where there is not room for one."""
    available = psutil.virtual_memory().available
    cell["groups"] = groups_of(list(cell["rounds"]), cell["size"], ranks, available)
    if not cell["groups"]:
        print(f"  skipping d = {cell['size']:,}: {available / 1e9:.0f} GB is not enough for {ranks} ranks", flush=True)
    return bool(cell["groups"])


def memory_rate() -> float:
    """Bytes per second at which one core reads memory."""
    from benchmarks.passes.selection import Rivals, aligned

    rivals, x = Rivals(), aligned(25 * 10**6)
    taken = timing.interleave({"read": timing.Arm(lambda: rivals.read(x))}, 9, before=lambda: None)
    return x.nbytes / (1e-3 * taken["read"].median)


def without_mpi() -> str | None:
    """Why ranks that mpirun has started cannot exchange here, with the remedy; None if they can."""
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
        help=f"nodes x ranks, and rates of the links; may be repeated (default: {WHOLE_GRID})",
    )
    parser.add_argument("--sizes", type=_names, default=list(SIZES), help="of the gradient (default: 1M,25M,110M)")
    parser.add_argument("--densities", type=_names, default=[str(density) for density in DENSITIES])
    parser.add_argument("--without", nargs="+", default=[], metavar="ARM", help="arms to skip, such as slow ones")
    parser.add_argument("--dry", action="store_true", help="write no results")
    parser.add_argument(
        "--launcher", default="rendezvous", choices=LAUNCHERS, help="what starts the ranks (default: %(default)s)"
    )
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
            rivals = others(options.launcher)
            cells = cells_of((nodes, local), rate, options.sizes, densities, rivals, options.without)
            runs.append(measure((nodes, local), rate, cells, options.launcher))
            if not options.dry:  # after each, so that a later failure loses nothing
                write(runs, read_rate)
    print(render(runs, rows_of(runs, read_rate), read_rate))


def write(runs: list[dict], read_rate: float) -> None:
    """Writes the results so far as JSON, Markdown and a picture."""
    rows = rows_of(runs, read_rate)
    text = render(runs, rows, read_rate)
    known = ("shape", "rate", "reached", "congestion", "idle")
    links = [{key: run[key] for key in known} for run in runs]
    summary = {"machine": timing.machine(), "links": links, "rows": writing.columns(rows)}
    stem = writing.write_results("exchange", summary, text, runs)
    draw(rows, f"{stem}.png")
    print(f"Written to {stem}.json, .md and .png", flush=True)


if __name__ == "__main__":
    main()
