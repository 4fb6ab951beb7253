"""The reading ranks: this process's place among the ranks of the job, and this machine's among its nodes."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from datacache import launchers, rendezvous

_SECRET_BYTES = 16  # at least


@dataclasses.dataclass(frozen=True)
class World:
    """A rank's place in the job.

    Attributes:
        rank: of this process, in [0, size).
        size: number of ranks of the job, P.
        node: number of this machine, in [0, nodes).
        nodes: number of machines of the job, m.
        peers: address of each node's memory level, host:port, in the order of nodes; empty if nodes do not ask each
            other. Each DataCache of a process needs its own addresses.
        bind: the address, host:port, at which this node serves its peers, and nowhere else.
        secret: of the job, random and at least 16 bytes long; peers prove to each other that they know it.
        encrypt: also encrypt what peers send (CURVE), if others may listen. With the libsodium in pyzmq's own wheels it
            is tens of times slower: see benchmarks/datacache/peers.py.
    """

    rank: int = 0
    size: int = 1
    node: int = 0
    nodes: int = 1
    peers: tuple[str, ...] = ()
    bind: str | None = None
    secret: bytes | None = dataclasses.field(default=None, repr=False)
    encrypt: bool = False
    _barrier: Callable[[], None] | None = dataclasses.field(default=None, repr=False, compare=False)
    _held: object = dataclasses.field(default=None, repr=False, compare=False)  # reserves the port of `bind`

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"Expected a rank in [0, size), got rank {self.rank} of {self.size}.")
        if not 0 <= self.node < self.nodes <= self.size:
            raise ValueError(
                f"Expected a node in [0, nodes) and at least one rank on each, got node {self.node} of {self.nodes} "
                f"and {self.size} ranks."
            )
        if self.peers and (len(self.peers) != self.nodes or not self.bind or not self.secret):
            raise ValueError(
                f"Expected the addresses of all {self.nodes} nodes with bind and secret, or no peers at all, got "
                f"{len(self.peers)} addresses, bind {self.bind} and {'a' if self.secret else 'no'} secret."
            )
        if self.peers and (not isinstance(self.secret, bytes) or len(self.secret) < _SECRET_BYTES):
            raise ValueError(
                f"Expected a secret of at least {_SECRET_BYTES} random bytes, got {type(self.secret).__name__} of "
                f"length {len(self.secret or ())}: make one with `python -c 'import secrets; "
                "print(secrets.token_hex(32))' > FILE`, the same on all nodes."
            )

    @classmethod
    def from_environment(
        cls,
        peers: Sequence[str] | None = None,
        bind: str | None = None,
        secret: bytes | None = None,
        encrypt: bool | None = None,
    ) -> World:
        """The place that the launcher reports to this process; one process alone without a launcher.

        It understands Horovod's launcher, torchrun, Slurm's srun, and the mpiexec of Open MPI, MPICH, Intel MPI,
        MVAPICH and Cray, with the same number of processes on each node; if the node is not reported, ranks are assumed
        to be numbered node by node.

        Args:
            peers: see `World`; by default the variable DATACACHE_PEERS, addresses separated by commas.
            bind: by default the variable DATACACHE_BIND, or else this node's address among the peers.
            secret: by default the content of the file named by the variable DATACACHE_SECRET_FILE, without blanks at
                its ends; only its owner may be able to read it.
            encrypt: by default whether the variable DATACACHE_ENCRYPT is 1.

        Raises:
            ValueError: if nodes have unequal numbers of processes, or if a launcher reports other processes but not
                which of them this is, or if TF_CONFIG does, whose strategy may divide the data too.
        """
        place = cls(*launchers.place())
        if peers is None:
            peers = [each.strip() for each in os.environ.get("DATACACHE_PEERS", "").split(",") if each.strip()]
        if not peers:
            return place
        if bind is None:
            own = peers[place.node] if place.node < len(peers) else None
            bind = os.environ.get("DATACACHE_BIND", own)
        if secret is None and "DATACACHE_SECRET_FILE" in os.environ:
            secret = _read_secret(Path(os.environ["DATACACHE_SECRET_FILE"]))
        if encrypt is None:
            encrypt = os.environ.get("DATACACHE_ENCRYPT") == "1"
        return dataclasses.replace(place, peers=tuple(peers), bind=bind, secret=secret, encrypt=encrypt)

    @classmethod
    def from_horovod(cls, bind: str, port: int = 0, local_size: int | None = None, encrypt: bool = False) -> World:
        """A rank's place according to Horovod, with the addresses of all nodes and a secret created for this job.

            hvd.init()
            cache = datacache.DataCache(..., world=datacache.World.from_horovod("eth0"))

        A collective of all ranks; call it after Horovod was started, once for each DataCache. Addresses and secret are
        sent by Horovod; rank 0 draws the secret at random. The port stays reserved as long as the result exists.

        Args:
            bind: network interface, or address, at which this node serves its peers; it may differ between nodes.
            port: 0 lets the system choose one.
            local_size: number of ranks of each node, if one host stands for several, as in
                `hvd_sparse.init(local_size=n)`.
            encrypt: see `World`.

        Raises:
            RuntimeError: if Horovod was not started.
            ValueError: on every rank, if nodes would have unequal numbers of ranks.
            OSError: on every rank, if a node has no such address, or its port is taken.
        """
        place = rendezvous.agree(bind, port, local_size)
        world = cls(place.rank, place.size, place.node, place.nodes, encrypt=encrypt, _barrier=rendezvous.barrier)
        if place.nodes == 1:
            return world
        own = place.addresses[place.node]
        return dataclasses.replace(world, peers=place.addresses, bind=own, secret=place.secret, _held=place.held)

    def barrier(self) -> None:
        """Waits for all ranks, for example before closing caches that others may still ask; a collective.

        Raises:
            RuntimeError: if there are other ranks, and this was not made by `from_horovod`.
        """
        if self._barrier is not None:
            self._barrier()
        elif self.size > 1:
            raise RuntimeError("Only a World made by World.from_horovod can wait for other ranks.")

    def owned(self, samples: int) -> range:
        """The samples that this node's memory is for: a block of them with peers, all of them without."""
        return self.shares(samples)[self.node] if self.peers else range(samples)

    def shares(self, samples: int) -> list[range]:
        """The samples that each node's memory is for, if nodes serve each other."""
        ends = [samples * node // self.nodes for node in range(self.nodes + 1)]
        return [range(ends[node], ends[node + 1]) for node in range(self.nodes)]


def _read_secret(path: Path) -> bytes:
    mode = path.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PermissionError(f"Users other than its owner can access the secret in {path}: run `chmod 600 {path}`.")
    return path.read_bytes().strip()
