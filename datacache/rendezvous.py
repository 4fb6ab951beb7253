"""How the processes of a job find each other where Horovod runs: the only module that imports it, when it is called.

Horovod carries addresses, the secret and a barrier; samples never travel by it.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import secrets
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

_SECRET_BYTES = 32
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_REQUEST = struct.Struct("16s24s")  # struct ifreq: a name, then, as the answer, struct sockaddr_in


class Place(NamedTuple):
    """What a rank has learnt of its job; the secret is not for anybody's eyes.

    Attributes:
        rank, size, node, nodes: as of `World`.
        addresses: of all nodes' servers, host:port, in the order of nodes.
        secret: of the job.
        held: keeps this node's port from being given to others, for as long as it is referred to.
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
        port: 0 for one that the system chooses.
        local_size: ranks of each node; by default those of each host.

    Raises:
        RuntimeError: where Horovod was not started.
        ValueError: on every rank alike, where hosts have unequal numbers of ranks or local_size does not divide them.
        OSError: on every rank alike, where a node has no such address, its port is taken, or another node's too.
    """
    hvd = _horovod()
    host = os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
    nodes = arrange(_gather((host, local_size), "places"))
    node = next(number for number, ranks in enumerate(nodes) if hvd.rank() in ranks)
    is_first = hvd.rank() == nodes[node][0]
    held, address, problem = _try_to_hold(bind, port) if is_first else (None, "", "")
    told = _gather((address, problem), "addresses")
    _raise_together([problem for _, problem in told])
    addresses = tuple(told[ranks[0]][0] for ranks in nodes)
    if len(set(addresses)) < len(addresses):
        raise OSError(f"Expected an address of its own for each node, got {addresses}: choose port 0.")
    if not is_first:  # before anybody serves there
        held, _, problem = _try_to_hold(*_split(addresses[node]))
    _raise_together(_gather(problem, "held"))
    secret = _gather(secrets.token_hex(_SECRET_BYTES) if hvd.rank() == 0 else "", "secret")[0]
    return Place(hvd.rank(), hvd.size(), node, len(nodes), addresses, bytes.fromhex(secret), held)


def barrier() -> None:
    """Waits for all ranks; a collective."""
    _gather(None, "barrier")


def arrange(places: Sequence[tuple[str, int | None]]) -> list[list[int]]:
    """The ranks of each node, in the order of their first ranks, from each rank's host and the local_size it asked for.

    Raises:
        ValueError: where nodes would be unequal, or ranks ask for different sizes.
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


def resolve(bind: str) -> str:
    """The address of a network interface, or that a name or an address stands for.

    Raises:
        OSError: where there is none, or it stands for all addresses of the machine.
    """
    if bind in (name for _, name in socket.if_nameindex()):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            try:
                answer = fcntl.ioctl(asked, _GET_ADDRESS, _REQUEST.pack(bind.encode(), b""))
            except OSError as error:
                raise OSError(error.errno, f"interface {bind} has no IPv4 address ({error.strerror})") from None
        return socket.inet_ntoa(answer[20:24])
    found = str(socket.getaddrinfo(bind, None, type=socket.SOCK_STREAM)[0][4][0])
    if ipaddress.ip_address(found.partition("%")[0]).is_unspecified:
        raise OSError(f"{bind} is no single address: give that of the network that peers are to use")
    return found


def _try_to_hold(bind: str, port: int) -> tuple[socket.socket | None, str, str]:
    """A socket that holds a port, its address, and what went wrong in words."""
    try:
        held = _hold(resolve(bind), port)
    except OSError as error:
        return None, "", f"cannot serve peers at {bind}, port {port}: {error}"
    host, port = held.getsockname()[:2]
    return held, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", ""


def _hold(host: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen: servers of this job's processes can bind there too, one by one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
    except BaseException:
        held.close()
        raise
    return held


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _raise_together(problems: Sequence[str]) -> None:
    faulty = [f"rank {rank} {problem}" for rank, problem in enumerate(problems) if problem]
    if faulty:
        raise OSError("; ".join(faulty))


def _gather(value: Any, name: str) -> list[Any]:
    """Each rank's value, in their order; it travels as JSON."""
    hvd = _horovod()
    import tensorflow as tf

    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = hvd.allgather(tf.constant([len(text)], tf.int64), name=f"datacache.{name}.lengths").numpy()
    texts = hvd.allgather(tf.constant(text), name=f"datacache.{name}").numpy()
    return [json.loads(each.tobytes()) for each in np.split(texts, np.cumsum(lengths)[:-1])]


def _horovod() -> Any:
    import horovod.tensorflow as hvd

    if not hvd.is_initialized():
        raise RuntimeError("Horovod has not been started: call its init(), or hvd_sparse's, before.")
    return hvd
