"""The time of an exchange by the alpha-beta model: a message of b bytes takes latency + b / bandwidth.

The formulas are those of CommLib (3.2, Eq. 3 and 7 to 10) with two changes: values travel with their indices, so a
kept element is 8 bytes, and the ranks of a node share its link to the others. `element` is the bytes per value that is
sent: 4, or 2 if gradients are 16-bit numbers, as in CommLib's Fig. 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

ELEMENT = 4  # bytes of a float32
INDEX = 4  # bytes of an int32
KEPT = ELEMENT + INDEX  # bytes of a float32 and its index
COUNTED = 8  # bytes before a message whose count the other ranks do not know
# The recipes that are compared by default. Of equally fast ones the first is chosen: dense ones before sparse ones, and
# of these the one that sends less across nodes, as it gains more when several buckets are in flight.
CANDIDATES = ("dense", "torus2d", "hitopk", "topk")
DENSE = ("dense", "tree", "torus2d")  # those that send the whole gradient
FEEDBACK = 12  # bytes per element: gradient and residual are read, the residual is written


class Link(NamedTuple):
    """The link between two ranks.

    Attributes:
        latency: seconds before the first byte of a message arrives (alpha).
        bandwidth: bytes per second (1 / beta).
        stream: bytes per second that one connection carries, if several are needed to fill the link.
        call: fixed seconds that a collective takes besides its messages, until the ranks have agreed on it.
    """

    latency: float
    bandwidth: float
    stream: float = math.inf
    call: float = 0.0

    def shared_by(self, senders: int) -> Link:
        """The link as each of several ranks sees it that send at the same time."""
        return Link(self.latency, min(self.stream, self.bandwidth / senders), call=self.call)

    def message(self, size: float) -> float:
        """Seconds that a message of this many bytes takes."""
        return self.latency + size / min(self.stream, self.bandwidth)


class Cluster(NamedTuple):
    """A cluster of nodes of equal size.

    Attributes:
        nodes: m, the number of nodes.
        local: n, the ranks on each node.
        inside: the link between two ranks of a node; each rank has its own.
        across: the link from a node to the others; its ranks share it.
        memory: bytes per second at which one rank reads and writes memory while all ranks do.
        entry: seconds that a rank spends on one index and value when it selects it, and again when it adds it.
        reducing: `across` as all-reduces, and all-gathers over all ranks, use it: Gloo's all-gather between ranks of
            two nodes sends in one direction at a time, a longer ring in both. None if there is no difference.
    """

    nodes: int
    local: int
    inside: Link
    across: Link
    memory: float
    entry: float = 0.0
    reducing: Link | None = None

    @property
    def rings(self) -> Link:
        """The link across nodes, for rings."""
        return self.reducing or self.across

    @property
    def ranks(self) -> int:
        """The number of ranks P."""
        return self.nodes * self.local


def kept(size: float, density: float) -> int:
    """k = max(1, round(density * size)), or 0 for an empty vector."""
    return max(1, round(density * size)) if size > 0 else 0


def dense(cluster: Cluster, size: int, density: float = 1.0, element: int = ELEMENT) -> dict[str, float]:
    """A ring all-reduce over all ranks, node after node: 2 (P - 1) messages of 4 d / P bytes."""
    return {"all-reduce": _flat_ring(cluster, element * size / cluster.ranks, passes=2)}


def tree(cluster: Cluster, size: int, density: float = 1.0, element: int = ELEMENT) -> dict[str, float]:
    """A double binary tree over the nodes, as NCCL builds it (CommLib's TreeAR and Dense).

    Each of two trees carries one half down a chain of a node's ranks and then over the nodes, up and down again. A rank
    inside a tree receives its half from two children, and its link has to carry both. One rank of a node drives the
    link, so the link's `stream` is the limit.
    """
    if cluster.ranks == 1:
        return {"all-reduce": 0.0}
    height = math.ceil(math.log2(cluster.nodes)) if cluster.nodes > 1 else 0
    latency = 2 * ((cluster.local - 1) * cluster.inside.latency + height * cluster.across.latency)
    carried = (1 if cluster.nodes == 2 else 2) * element * size  # each of two nodes has one child in one of the trees
    slowest = cluster.across if cluster.nodes > 1 else cluster.inside
    return {"all-reduce": slowest.call + latency + carried / min(slowest.stream, slowest.bandwidth)}


def torus2d(cluster: Cluster, size: int, density: float = 1.0, element: int = ELEMENT) -> dict[str, float]:
    """2DTAR (CommLib 5.3): reduce-scatter in the node, all-reduce across nodes, all-gather in the node."""
    shard = math.ceil(size / cluster.local)
    across = cluster.rings.shared_by(cluster.local)
    return {
        "reduce-scatter": _ring(cluster.inside, cluster.local, element * shard),
        "across nodes": _ring(across, cluster.nodes, element * shard / cluster.nodes, passes=2),
        "all-gather": _ring(cluster.inside, cluster.local, element * shard),
    }


def topk(cluster: Cluster, size: int, density: float, element: int = ELEMENT) -> dict[str, float]:
    """NaiveAG (CommLib Eq. 3): selection, and an all-gather of 8 k bytes over all ranks."""
    count = kept(size, density)
    return {
        "selection": FEEDBACK * size / cluster.memory + cluster.entry * count,
        "all-gather": _flat_ring(cluster, (element + INDEX) * count),
        "scatter": _scatter(cluster, size, cluster.ranks * count),
    }


def dropping(cluster: Cluster, size: int, density: float, element: int = ELEMENT) -> dict[str, float]:
    """Gradient dropping: like `topk`, with the same mean number of elements, and a count before each message."""
    message = (element + INDEX) * kept(size, density) + COUNTED
    return {**topk(cluster, size, density, element), "all-gather": _flat_ring(cluster, message)}


def hitopk(cluster: Cluster, size: int, density: float, element: int = ELEMENT) -> dict[str, float]:
    """HiTopKComm (CommLib Eq. 7 to 10), step by step as in its Fig. 8."""
    shard = math.ceil(size / cluster.local)
    count = kept(shard, density)
    across = cluster.across.shared_by(cluster.local)
    gathered = min((element + INDEX) * cluster.nodes * count, element * shard)
    return {
        "reduce-scatter": _ring(cluster.inside, cluster.local, element * shard),
        "selection": (FEEDBACK + ELEMENT * (cluster.local - 1)) * shard / cluster.memory + cluster.entry * count,
        "across nodes": _ring(across, cluster.nodes, (element + INDEX) * count),
        "all-gather": _ring(cluster.inside, cluster.local, gathered),
        "scatter": _scatter(cluster, size, cluster.ranks * count),
    }


def blocks(cluster: Cluster, size: int, density: float = 1.0, element: int = ELEMENT) -> dict[str, float]:
    """`blocks` as it is by default, a third of the vector in 2 bits, whatever the density: to owners and back."""
    shard = math.ceil(size / cluster.local)
    across, part = cluster.across.shared_by(cluster.local), block_bytes(shard, cluster.nodes)
    return {
        "reduce-scatter": _ring(cluster.inside, cluster.local, element * shard),
        "selection": (FEEDBACK + ELEMENT * (cluster.local - 1)) * shard / cluster.memory,
        "to owners": _ring(across, cluster.nodes, part),
        "from owners": _ring(across, cluster.nodes, part),
        "all-gather": _ring(cluster.inside, cluster.local, element * shard),
        "spread": ELEMENT * size / cluster.memory,
    }


MODELS: dict[str, Callable[[Cluster, int, float, int], dict[str, float]]] = {
    "dense": dense,
    "tree": tree,
    "torus2d": torus2d,
    "topk": topk,
    "mstopk": topk,
    "dropping": dropping,
    "hitopk": hitopk,
    "blocks": blocks,
}


def seconds(recipe: str, cluster: Cluster, size: int, density: float, element: int = ELEMENT) -> float:
    """Seconds of the whole exchange of a vector of `size` elements, at `element` bytes per value that is sent.

    Raises:
        ValueError: if there is no model of the recipe.
    """
    if recipe not in MODELS:
        raise ValueError(f"Expected one of {', '.join(MODELS)}, got {recipe!r}.")
    return sum(MODELS[recipe](cluster, size, density, element).values())


def link_bytes(recipe: str, nodes: int, local: int, size: int, density: float) -> float:
    """Payload bytes that all ranks of a node together send to other nodes in one exchange."""
    ranks = nodes * local
    if nodes == 1:
        return 0.0
    if recipe == "hitopk":
        return float(local * (nodes - 1) * KEPT * kept(math.ceil(size / local), density))
    if recipe == "blocks":
        return 2.0 * local * (nodes - 1) * block_bytes(math.ceil(size / local), nodes)
    if recipe in ("topk", "mstopk"):
        return float((ranks - 1) * KEPT * kept(size, density))
    if recipe == "dropping":
        return float((ranks - 1) * (KEPT * kept(size, density) + COUNTED))
    if recipe == "torus2d":
        return 2.0 * ELEMENT * size * (nodes - 1) / nodes
    if recipe == "dense":
        return 2.0 * ELEMENT * size * (ranks - 1) / ranks
    raise ValueError(f"Expected dense, torus2d, topk, mstopk, dropping, hitopk or blocks, got {recipe!r}.")


def block_bytes(size: int, senders: int, count: int = 3, bits: int = 2) -> int:
    """Bytes of what one of `count` blocks has of an owner's piece, in codes of 2 bits, four scales and a mark."""
    values = math.ceil(math.ceil(size / senders) / count)
    return math.ceil(values * bits / 8) + 4 * ELEMENT + 1


def _ring(link: Link, members: int, each: float, passes: int = 1) -> float:
    """Seconds of ring passes (all-gather or reduce-scatter 1, all-reduce 2), each of members - 1 messages in turn."""
    return link.call + passes * (members - 1) * link.message(each) if members > 1 else 0.0


def _flat_ring(cluster: Cluster, each: float, passes: int = 1) -> float:
    """The same over all ranks, node after node: every message waits for the slowest link of the ring."""
    if cluster.ranks == 1:
        return 0.0
    links = [cluster.rings] if cluster.nodes > 1 else []
    links += [cluster.inside] if cluster.local > 1 else []
    slowest = max(link.message(each) for link in links)
    return max(link.call for link in links) + passes * (cluster.ranks - 1) * slowest


def _scatter(cluster: Cluster, size: int, entries: int) -> float:
    """Seconds to write the dense mean and to read and add every contribution."""
    return (ELEMENT * size + (KEPT + ELEMENT) * entries) / cluster.memory + cluster.entry * entries
