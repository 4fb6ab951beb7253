"""How the processes of a job find each other under Horovod: the only module that imports it, when it is called.

Horovod carries addresses, the secret and a barrier; it never carries samples.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from link import addresses

_SECRET_BYTES = 32


class Place(NamedTuple):
    """What a rank has learnt about its job; keep the secret to this process.

    Attributes:
        rank, size, node, nodes: as in `World`.
        addresses: of all nodes' servers, host:port, in the order of nodes.
        secret: of the job.
        held: reserves this node's port as long as it is referenced.
    """

    rank: int
    size: int
    node: int
    nodes: int
    addresses: tuple[str, ...]
    secret: bytes
    held: socket.socket | None

    def __repr__(self) -> str:
        return f"Place(rank={self.rank} of {self.size}, node={self.node} of {self.nodes})"


def agree(bind: str, port: int, local_size: int | None) -> Place:
    """Agrees with all ranks on nodes, addresses and secret; a collective of all ranks, after Horovod's `init`.

    Args:
        bind: address, or network interface, of this machine.
        port: 0 lets the system choose one.
        local_size: ranks of each node; by default those of each host.

    Raises:
        RuntimeError: if Horovod was not started.
        ValueError: on every rank, if hosts have unequal numbers of ranks or local_size does not divide them.
        OSError: on every rank, if a node has no such address, its port is taken, or another node's too.
    """
    hvd = _horovod()
    host = os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
    nodes = arrange(_gather((host, local_size), "places"))
    node = next(number for number, ranks in enumerate(nodes) if hvd.rank() in ranks)
    is_first = hvd.rank() == nodes[node][0]
    held, address, problem = _try_to_hold(bind, port) if is_first else (None, "", "")
    told = _gather((address, problem), "addresses")
    _raise_together([problem for _, problem in told])
    places = tuple(told[ranks[0]][0] for ranks in nodes)
    if len(set(places)) < len(places):
        raise OSError(f"Expected a different address for each node, got {places}: choose port 0.")
    if not is_first:  # before any process serves there
        held, _, problem = _try_to_hold(*addresses.split(places[node]))
    _raise_together(_gather(problem, "held"))
    secret = _gather(secrets.token_hex(_SECRET_BYTES) if hvd.rank() == 0 else "", "secret")[0]
    return Place(hvd.rank(), hvd.size(), node, len(nodes), places, bytes.fromhex(secret), held)


def barrier() -> None:
    """Waits for all ranks; a collective."""
    _gather(None, "barrier")


def arrange(places: Sequence[tuple[str, int | None]]) -> list[list[int]]:
    """The ranks of each node, in the order of their first ranks, from each rank's host and requested local_size.

    Raises:
        ValueError: if nodes would be unequal, or ranks request different sizes.
    """
    hosts: dict[str, list[int]] = {}
    for rank, (host, _) in enumerate(places):
        hosts.setdefault(host, []).append(rank)
    asked = {size for _, size in places}
    counts = {host: len(ranks) for host, ranks in hosts.items()}
    each = len(hosts[places[0][0]]) if None in asked else min(asked)  # type: ignore[type-var]
    if len(asked) > 1 or each is None or each < 1 or any(count % each for count in counts.values()):
        raise ValueError(
            f"Expected the same local_size on all ranks, which divides the number of ranks on every host, got "
            f"{sorted(asked, key=str)} with {counts}."
        )
    if None in asked and len(set(counts.values())) > 1:
        raise ValueError(f"Expected equally many ranks on each host, or a local_size, got {counts}.")
    return [ranks[start : start + each] for ranks in hosts.values() for start in range(0, len(ranks), each)]


def _try_to_hold(bind: str, port: int) -> tuple[socket.socket | None, str, str]:
    """A socket that reserves a port, its address, and the error message if it failed."""
    try:
        return *addresses.hold(bind, port), ""
    except OSError as error:
        return None, "", f"cannot serve peers at {bind}, port {port}: {error}"


def _raise_together(problems: Sequence[str]) -> None:
    faulty = [f"rank {rank} {problem}" for rank, problem in enumerate(problems) if problem]
    if faulty:
        raise OSError("; ".join(faulty))


def _gather(value: Any, name: str) -> list[Any]:
    """Each rank's value, in rank order; it is sent as JSON."""
    hvd = _horovod()
    import tensorflow as tf

    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = hvd.allgather(tf.constant([len(text)], tf.int64), name=f"datacache.{name}.lengths").numpy()
    texts = hvd.allgather(tf.constant(text), name=f"datacache.{name}").numpy()
    return [json.loads(each.tobytes()) for each in np.split(texts, np.cumsum(lengths)[:-1])]


def _horovod() -> Any:
    import horovod.tensorflow as hvd

    if not hvd.is_initialized():
        raise RuntimeError("Horovod has not been started: call its init(), or hvd_sparse's, first.")
    return hvd
