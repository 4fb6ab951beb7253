"""Who reads: this process among the ranks of the job, and this machine among its nodes."""

from __future__ import annotations

import dataclasses
import os

# (rank, size, local rank, local size), as the launchers tell them
_LAUNCHERS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
)


@dataclasses.dataclass(frozen=True)
class World:
    """A rank's place in the job.

    Attributes:
        rank: of this process, in [0, size).
        size: ranks of the job, P.
        node: number of this machine, in [0, nodes).
        nodes: machines of the job, m.
        peers: address of each node's memory level, host:port, in the order of nodes; empty where nodes do not ask each
            other.
        bind: the address, host:port, at which this node serves its peers.
        secret: of the job; peers prove to each other that they know it.
    """

    rank: int = 0
    size: int = 1
    node: int = 0
    nodes: int = 1
    peers: tuple[str, ...] = ()
    bind: str | None = None
    secret: bytes | None = dataclasses.field(default=None, repr=False)

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

    @classmethod
    def from_environment(cls) -> World:
        """What Horovod's launcher, or Open MPI's, has told this process; one process alone without either."""
        for names in _LAUNCHERS:
            if all(name in os.environ for name in names):
                rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
                if size % local_size:
                    raise ValueError(
                        f"Expected equally many ranks on each node, got {size} ranks, {local_size} of them here."
                    )
                node = int(os.environ.get("HOROVOD_CROSS_RANK", (rank - local_rank) // local_size))
                return cls(rank, size, node, size // local_size)
        return cls()

    def owned(self, samples: int) -> range:
        """The samples that this node's memory is for: a block of them with peers, all of them without."""
        if not self.peers:
            return range(samples)
        return range(samples * self.node // self.nodes, samples * (self.node + 1) // self.nodes)
