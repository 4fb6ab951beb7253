"""Measures the links and the memory of a cluster, on its own ranks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_sparse import costs, ops
from hvd_sparse.transport import timing, topology
from hvd_sparse.transport.communicator import Communicator, Grid
from hvd_sparse.tuning.cache import MeasurementCache

Progress = Callable[[str], Any]
_SIZES = timing.Sizes(1 << 12, 1 << 21, 8, long=0.05)  # elements that a rank sends to each other rank
_SELECTED = 1 << 24  # elements of the timed selection: more than fit in a cache
_SUBJECT = "cluster"


def measure(grid: Grid | None = None, progress: Progress | None = None) -> costs.Cluster:
    """Measures latency and bandwidth inside and across nodes, and the rate of selection; a collective, a few seconds.

    Args:
        grid: the ranks to measure; by default the grid of `topology.init`.
        progress: called with a line that says what is being measured.

    Returns:
        The cluster, the same on every rank: each figure is the median over a few rounds of the slowest rank's.
    """
    grid = topology.grid() if grid is None else grid
    tell = progress or (lambda text: None)
    nodes, local = grid.cross.size, grid.node.size
    unused = costs.Link(0.0, 1e12)
    inside, across, reducing = unused, unused, None
    if local > 1:
        tell(f"inside the node, {local} ranks ...")
        inside = _link(grid, functools.partial(_send_inside, grid.node), local, local - 1, 1)
    if nodes > 1:
        tell(f"across {nodes} nodes ...")
        across = _link(grid, functools.partial(_send_across, grid.cross), 1, nodes - 1, local)
        reducing = _link(grid, functools.partial(_reduce_across, grid.cross), nodes, 2 * (nodes - 1), local)
    tell("selection ...")
    return costs.Cluster(nodes, local, inside, across, *_selection(grid), reducing)


def known(grid: Grid, cache: MeasurementCache, progress: Progress | None = None) -> costs.Cluster:
    """The cluster from the cache, or measured now and stored there; a collective.

    Args:
        grid: the ranks on the cluster.
        cache: the cache of the same ranks.
        progress: called with a line that says what is being measured.
    """
    figures = cache.read(_SUBJECT)
    if figures is not None:
        try:
            return _from_figures(grid, figures)
        except (KeyError, TypeError, ValueError) as error:
            cache.complain(f"is not used: expected the figures of a cluster, got {error!r}")
            cache.clear()
    cluster = measure(grid, progress)
    keep(cluster, cache)
    return cluster


def keep(cluster: costs.Cluster, cache: MeasurementCache) -> None:
    """Stores a cluster in the cache."""
    cache.write(_SUBJECT, _to_figures(cluster))


def _send_inside(node: Communicator, vector: tf.Tensor) -> None:
    node.alltoall(vector, [vector.shape[0] // node.size] * node.size, "links.inside")


def _send_across(cross: Communicator, vector: tf.Tensor) -> None:
    cross.allgather(vector, "links.across")


def _reduce_across(cross: Communicator, vector: tf.Tensor) -> None:
    cross.allreduce(vector, "sum", "links.reducing")


def _link(grid: Grid, send: Callable[[tf.Tensor], None], pieces: int, messages: int, senders: int) -> costs.Link:
    """The time per call and per byte.

    The fixed time per message is not measured separately: it is less than the differences between calls.

    Args:
        grid: the ranks that measure.
        send: sends a vector.
        pieces: the number of pieces in which it is sent.
        messages: the number of messages of one piece each that follow one another.
        senders: ranks that share the link.
    """

    def seconds(each: int) -> float:
        return timing.median_seconds(grid.world, functools.partial(send, tf.zeros([pieces * each])), "links")

    call = timing.fit_link(seconds, _SIZES, messages * costs.ELEMENT)
    return costs.Link(0.0, senders * call.bandwidth, call=call.latency)


def _selection(grid: Grid) -> tuple[float, float]:
    """`memory` and `entry`, from the time of selecting a few elements and many."""
    gradient, residual = tf.random.stateless_normal([1, _SELECTED], [1, 1]), tf.zeros([_SELECTED])
    counts = (_SELECTED // 100, _SELECTED // 10)
    select = functools.partial(ops.feedback_topk, gradient, residual)
    few, many = (timing.median_seconds(grid.world, functools.partial(select, k), "links") for k in counts)
    entry = max(0.0, (many - few) / (counts[1] - counts[0]))
    return costs.FEEDBACK * _SELECTED / max(few - entry * counts[0], few / 2), entry


def _to_figures(cluster: costs.Cluster) -> dict[str, Any]:
    """The figures of a cluster, JSON-serializable; an unlimited stream becomes null, as JSON has no infinity."""
    figures = cluster._asdict()
    for name, link in figures.items():
        if isinstance(link, costs.Link):
            figures[name] = {**link._asdict(), "stream": None if math.isinf(link.stream) else link.stream}
    return figures


def _from_figures(grid: Grid, figures: dict[str, Any]) -> costs.Cluster:
    """The reverse of `_to_figures`; raises KeyError, TypeError or ValueError if the figures are not of a cluster."""
    if (figures["nodes"], figures["local"]) != (grid.cross.size, grid.node.size):
        raise ValueError(f"{figures['nodes']} nodes of {figures['local']}")
    inside, across = _to_link(figures["inside"]), _to_link(figures["across"])
    reducing = None if figures["reducing"] is None else _to_link(figures["reducing"])
    memory, entry = _number(figures["memory"], 1e-9), _number(figures["entry"], 0.0)
    return costs.Cluster(grid.cross.size, grid.node.size, inside, across, memory, entry, reducing)


def _to_link(figures: dict[str, Any]) -> costs.Link:
    stream = math.inf if figures["stream"] is None else _number(figures["stream"], 1e-9)
    latency, call = _number(figures["latency"], 0.0), _number(figures["call"], 0.0)
    return costs.Link(latency, _number(figures["bandwidth"], 1e-9), stream, call)


def _number(value: Any, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
        raise ValueError(f"expected a number of at least {least}, got {value!r}")
    return float(value)
