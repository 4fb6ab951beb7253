"""The links and the memory of a cluster, measured by the ranks that are on it."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse import costs, ops, topology
from hvd_sparse.communicator import Communicator, Grid
from hvd_sparse.notebook import Notebook

Progress = Callable[[str], Any]
_REPEATS = 5
_SMALL, _LARGEST, _STEP = 1 << 12, 1 << 21, 8  # elements a rank sends to each other one
_LONG = 0.05  # seconds after which nothing larger is sent: bandwidth is well told from latency
_SELECTED = 1 << 22  # elements of the selection that is timed
_SUBJECT = "cluster"


def measure(grid: Grid | None = None, progress: Progress | None = None) -> costs.Cluster:
    """Measures latency and bandwidth inside and across nodes, and the rate of selection; a collective, a few seconds.

    Args:
        grid: by default that of `topology.init`.
        progress: is told what is being measured.

    Returns:
        The same on every rank: each figure is the median of a few rounds of the slowest rank.
    """
    grid = topology.grid() if grid is None else grid
    tell = progress or (lambda text: None)
    nodes, local = grid.cross.size, grid.node.size
    unused = costs.Link(0.0, 1e12)
    inside, across = unused, unused
    if local > 1:
        tell(f"inside the node, {local} ranks ...")
        inside = _fit(grid, functools.partial(_send_inside, grid.node), local, local - 1, 1)
    if nodes > 1:
        tell(f"across {nodes} nodes ...")
        across = _fit(grid, functools.partial(_send_across, grid.cross), 1, nodes - 1, local)
    tell("selection ...")
    return costs.Cluster(nodes, local, inside, across, _memory_rate(grid))


def known(grid: Grid, notebook: Notebook, progress: Progress | None = None) -> costs.Cluster:
    """The cluster as the notebook has it, else measured now and written down; a collective.

    Args:
        grid: who is on the cluster.
        notebook: of the same ranks.
        progress: is told what is being measured.
    """
    figures = notebook.read(_SUBJECT)
    if figures is not None:
        try:
            return _from_figures(grid, figures)
        except (KeyError, TypeError, ValueError) as error:
            notebook.complain(f"is not used: expected the figures of a cluster, got {error!r}")
            notebook.clear()
    cluster = measure(grid, progress)
    keep(cluster, notebook)
    return cluster


def keep(cluster: costs.Cluster, notebook: Notebook) -> None:
    """Writes a cluster down."""
    notebook.write(_SUBJECT, _to_figures(cluster))


def slowest(world: Communicator, run: Callable[[], Any]) -> float:
    """Seconds that a call takes on the slowest rank, from when all ranks are there; the same on every rank."""
    world.allreduce(tf.constant(0), "max", "links.meet")
    start = time.perf_counter()
    run()
    elapsed = tf.constant(time.perf_counter() - start, tf.float64)
    return float(world.allreduce(elapsed, "max", "links.slowest"))


def _send_inside(node: Communicator, vector: tf.Tensor) -> None:
    node.alltoall(vector, [vector.shape[0] // node.size] * node.size, "links.inside")


def _send_across(cross: Communicator, vector: tf.Tensor) -> None:
    cross.allgather(vector, "links.across")


def _fit(grid: Grid, send: Callable[[tf.Tensor], None], pieces: int, messages: int, senders: int) -> costs.Link:
    """Latency and bandwidth out of a small size and the first that takes long.

    Args:
        grid: who measures.
        send: sends a vector.
        pieces: that it is sent in.
        messages: of one piece each that follow one another.
        senders: ranks that share the link.
    """

    def seconds(each: int) -> float:
        return _seconds(grid, functools.partial(send, tf.zeros([pieces * each])))

    each = _SMALL
    small = large = seconds(each)
    while large < _LONG and each < _LARGEST:
        each *= _STEP
        large = seconds(each)
    if each == _SMALL:  # so slow that latency makes no difference
        return costs.Link(0.0, senders * messages * costs.ELEMENT * each / small)
    per_byte = max(large - small, 1e-9) / (messages * costs.ELEMENT * (each - _SMALL))
    return costs.Link(max(0.0, small / messages - costs.ELEMENT * _SMALL * per_byte), senders / per_byte)


def _memory_rate(grid: Grid) -> float:
    gradient, residual = tf.random.normal([1, _SELECTED], seed=1), tf.zeros([_SELECTED])
    taken = _seconds(grid, lambda: ops.feedback_topk(gradient, residual, _SELECTED // 100))
    return costs.FEEDBACK * _SELECTED / taken


def _seconds(grid: Grid, run: Callable[[], Any]) -> float:
    """The median of a few rounds after one that does not count, each as long as its slowest rank."""
    taken = [slowest(grid.world, run) for _ in range(1 + _REPEATS)]
    return float(np.median(taken[1:]))


def _to_figures(cluster: costs.Cluster) -> dict[str, Any]:
    """JSON-serialisable; a stream without a limit, for which JSON has no number, is null."""
    links = {
        name: {**link._asdict(), "stream": None if math.isinf(link.stream) else link.stream}
        for name, link in (("inside", cluster.inside), ("across", cluster.across))
    }
    return {**cluster._asdict(), **links}


def _from_figures(grid: Grid, figures: dict[str, Any]) -> costs.Cluster:
    """The reverse; KeyError, TypeError or ValueError where the figures are of something else."""
    if (figures["nodes"], figures["local"]) != (grid.cross.size, grid.node.size):
        raise ValueError(f"{figures['nodes']} nodes of {figures['local']}")
    inside, across = (
        costs.Link(
            _number(link["latency"], 0.0),
            _number(link["bandwidth"], 1e-9),
            math.inf if link["stream"] is None else _number(link["stream"], 1e-9),
        )
        for link in (figures["inside"], figures["across"])
    )
    return costs.Cluster(grid.cross.size, grid.node.size, inside, across, _number(figures["memory"], 1e-9))


def _number(value: Any, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
        raise ValueError(f"expected a number of at least {least}, got {value!r}")
    return float(value)
