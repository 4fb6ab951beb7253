"""Which ranks form a node, from what each rank reports about itself."""

from __future__ import annotations

import collections
import os
from collections.abc import Sequence
from typing import Any

from hvd_sparse.transport import host_names

LOCAL_SIZE_VARIABLE = "HVD_SPARSE_LOCAL_SIZE"


class UnevenError(ValueError):
    """Nodes would have different numbers of ranks."""


def arrange(places: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Groups the world ranks into nodes of equal size.

    Args:
        places: for each world rank its `host` and the requested `local_size`, or None.

    Returns:
        The world ranks of each node, the nodes in the order of their first ranks.

    Raises:
        ValueError: if the ranks ask for different sizes.
        UnevenError: if the nodes would be unequal.
    """
    asked = {place["local_size"] for place in places}
    if len(asked) > 1:
        by_rank = ", ".join(f"rank {rank}: {place['local_size']}" for rank, place in enumerate(places))
        raise ValueError(
            f"The ranks disagree on local_size ({by_rank}): pass the same hvd.init(local_size=...) and the same "
            f"{LOCAL_SIZE_VARIABLE} on every rank."
        )
    hosts: dict[str, list[int]] = collections.defaultdict(list)
    for world_rank, place in enumerate(places):
        hosts[place["host"]].append(world_rank)
    counts = ", ".join(f"{host}: {len(ranks)}" for host, ranks in hosts.items())
    wanted = asked.pop()
    if wanted is None and len({len(ranks) for ranks in hosts.values()}) > 1:
        raise UnevenError(
            f"The nodes are of unequal size ({counts} ranks): start the same number of ranks on every host, or pass "
            "hvd.init(local_size=n) with an n that divides them all."
        )
    per_node = wanted if wanted is not None else len(hosts[places[0]["host"]])
    if per_node < 1 or any(len(ranks) % per_node for ranks in hosts.values()):
        raise UnevenError(
            f"local_size = {per_node} does not divide the number of ranks on every host ({counts}): choose a divisor "
            f"in hvd.init(local_size=...) or {LOCAL_SIZE_VARIABLE}, or leave it out."
        )
    return [ranks[start : start + per_node] for ranks in hosts.values() for start in range(0, len(ranks), per_node)]


def told_uneven(rows: Sequence[Sequence[int]], places: Sequence[dict[str, Any]]) -> str | None:
    """What to warn about if each rank is a node of its own because hosts are uneven; None if it is not so."""
    counts = collections.Counter(place["host"] for place in places)
    if max(map(len, rows)) > 1 or max(counts.values()) == 1 or places[0]["local_size"] == 1:
        return None
    told = ", ".join(f"{host}: {count}" for host, count in counts.items())
    return f"hosts have unequal numbers of ranks ({told}): each rank is a node of its own until they are equal again."


def columns(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """The world ranks at the same position in their nodes, in the order in which Horovod numbers a process set."""
    return [sorted(column) for column in zip(*rows, strict=True)]


def place(local_size: int | None) -> dict[str, Any]:
    """Where this process runs and what it asks for, to compare with the others."""
    if local_size is None and os.environ.get(LOCAL_SIZE_VARIABLE):
        text = os.environ[LOCAL_SIZE_VARIABLE]
        # An unreadable number must reach every rank, so it travels as 0 and is refused by all.
        local_size = int(text) if text.isdigit() else 0
    return {"host": host_names.own(), "local_size": local_size}
