"""Which recipe pays on which cluster: measured where it runs, or simulated for one that is not there.

horovodrun -np 8 -H a:4,b:4 python -m hvd_sparse.planner
python -m hvd_sparse.planner --simulate nodes=16 local=8 inter=25Gbit intra=480Gbit model=resnet50

What it measures it keeps for `hvd.recipes.auto`, in place of what was known of the cluster before.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

from hvd_sparse import costs
from hvd_sparse.costs import CANDIDATES
from hvd_sparse.transport import topology
from hvd_sparse.tuning import links
from hvd_sparse.tuning.cache import MeasurementCache
from hvd_sparse.tuning.links import measure

MODEL_SIZES = {"resnet50": 25_600_000, "vgg19": 143_700_000, "transformer": 110_000_000}  # parameters
DENSITIES = (0.001, 0.01, 0.1)
COMPARED = (*CANDIDATES, "blocks")  # what `auto` tries, and `recommended` on three nodes or more at a density of 0.01


class Plan(NamedTuple):
    """A choice of recipe and the reason for it.

    Attributes:
        recipe: the fastest by the model.
        seconds: the predicted seconds of every candidate.
        reason: the reason, in a sentence.
    """

    recipe: str
    seconds: dict[str, float]
    reason: str


def plan(cluster: costs.Cluster, size: int, density: float, candidates: Sequence[str] = COMPARED) -> Plan:
    """Chooses a recipe for a vector by the cost model; of equally fast ones, the first; on one node, of the dense ones.

    Args:
        cluster: a measured or simulated cluster.
        size: elements of the vector, float32.
        density: the density of the sparse candidates.
        candidates: names in `costs.MODELS`.
    """
    seconds = {name: costs.seconds(name, cluster, size, density) for name in candidates}
    whole = {name: taken for name, taken in seconds.items() if name in costs.DENSE}
    if cluster.nodes == 1 and whole:
        best = min(whole, key=whole.__getitem__)
        return Plan(best, seconds, f"{best}: {1e3 * whole[best]:.2f} ms; on one node no recipe sends less to others")
    best = min(seconds, key=seconds.__getitem__)
    others = {name: taken for name, taken in seconds.items() if name != best}
    if not others:
        return Plan(best, seconds, f"{best}: the only candidate")
    second = min(others, key=others.__getitem__)
    sent, instead = (
        costs.link_bytes(name, cluster.nodes, cluster.local, size, density) / 1e6 for name in (best, second)
    )
    reason = (
        f"{best}: {1e3 * seconds[best]:.2f} ms, {seconds[second] / max(seconds[best], 1e-12):.1f} times as fast as "
        f"{second}; a node sends {sent:.2f} MB, with {second} {instead:.2f} MB"
    )
    return Plan(best, seconds, reason)


def table(cluster: costs.Cluster, size: int, densities: Sequence[float] = DENSITIES) -> str:
    """A table of every recipe's predicted milliseconds by density, and the choice for each density."""
    lines = [
        f"{cluster.nodes} nodes of {cluster.local} ranks, {size:,} elements",
        f"inside a node:  {_latency(cluster.inside)}, {8e-9 * cluster.inside.bandwidth:8.2f} Gbit/s"
        if cluster.local > 1
        else "one rank a node",
        f"across nodes:   {_latency(cluster.across)}, {8e-9 * cluster.across.bandwidth:8.2f} Gbit/s a node"
        if cluster.nodes > 1
        else "a single node",
        f"selection:      {1e-9 * cluster.memory:9.1f} GB/s a rank, {1e9 * cluster.entry:.1f} ns for each that is kept",
        "",
        "density " + "".join(f"{name + ', ms':>14}" for name in COMPARED) + "   choice",
    ]
    for density in densities:
        chosen = plan(cluster, size, density)
        times = "".join(f"{1e3 * chosen.seconds[name]:14.2f}" for name in COMPARED)
        lines.append(f"{density:<8g}{times}   {chosen.reason}")
    return "\n".join(lines)


def _latency(link: costs.Link) -> str:
    """The latency of a call of one message, as text."""
    return f"{1e6 * (link.call + link.latency):9.1f} us"


def simulated(settings: Sequence[str]) -> tuple[costs.Cluster, int]:
    """A cluster and a vector's size from settings like nodes=16 local=8 inter=25Gbit intra=480Gbit model=resnet50.

    Raises:
        ValueError: if a setting is unknown or invalid, or a required one is missing.
    """
    known = {
        "nodes": None,
        "local": None,
        "inter": None,
        "intra": None,
        "model": "",
        "size": "",
        "inter_latency": "50us",
        "intra_latency": "10us",
        "memory": "300GB",
    }
    given: dict[str, str | None] = dict(known)
    for word in settings:
        name, separator, value = word.partition("=")
        if not separator or name not in known:
            raise ValueError(f"Expected NAME=VALUE with one of {', '.join(known)}, got {word!r}.")
        given[name] = value
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise ValueError(f"Expected also {', '.join(missing)}, as in nodes=16 local=8 inter=25Gbit intra=480Gbit.")
    texts = {name: str(value) for name, value in given.items()}
    cluster = costs.Cluster(
        _count("nodes", texts["nodes"]),
        _count("local", texts["local"]),
        costs.Link(_quantity(texts["intra_latency"]), _quantity(texts["intra"])),
        costs.Link(_quantity(texts["inter_latency"]), _quantity(texts["inter"])),
        _quantity(texts["memory"]),
    )
    return cluster, _size(texts["model"], texts["size"])


def _size(model: str, size: str) -> int:
    if bool(model) == bool(size):
        raise ValueError("Expected either model=NAME or size=ELEMENTS.")
    if model and model not in MODEL_SIZES:
        raise ValueError(f"Expected one of the models {', '.join(MODEL_SIZES)}, got {model!r}; or pass size=ELEMENTS.")
    return MODEL_SIZES[model] if model else _count("size", size)


def _count(name: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"Expected {name} to be an integer of at least 1, got {text!r}.")
    return int(text)


def _quantity(text: str) -> float:
    """The bytes per second of a rate ("25Gbit", "300GB"), or the seconds of a time ("50us")."""
    units = {"kbit": 125.0, "mbit": 125e3, "gbit": 125e6, "mb": 1e6, "gb": 1e9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([a-z]+)", text.lower())
    if not found or found[2] not in units or float(found[1]) <= 0:
        raise ValueError(f"Expected a number and one of {', '.join(units)}, got {text!r}.")
    return float(found[1]) * units[found[2]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m hvd_sparse.planner", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulate", nargs="+", metavar="NAME=VALUE", help="a hypothetical cluster")
    parser.add_argument("--size", type=int, default=MODEL_SIZES["resnet50"], help="elements, when measured (25600000)")
    options = parser.parse_args(arguments)
    if options.simulate:
        try:
            print(table(*simulated(options.simulate)))
        except ValueError as error:
            sys.exit(str(error))
        return
    topology.init()
    first = topology.rank() == 0
    cluster = measure(progress=(lambda text: print(text, flush=True)) if first else None)
    cache = MeasurementCache(topology.grid())
    cache.clear()
    links.keep(cluster, cache)
    if first:
        print(table(cluster, options.size), flush=True)
        print(f"Kept for hvd.recipes.auto in {cache.path}", flush=True)
