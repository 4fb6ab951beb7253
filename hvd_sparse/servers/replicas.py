"""What happens to a server's shard when the server is gone: its deputy, the next rank, has a replica and takes over.

A server sends its deputy a replica every few updates, and makes only a limited number of updates beyond what the deputy
has confirmed. It serves on a lease: each confirmation lets it go on for some seconds, and without one it applies
nothing. The deputy takes over when a client asks it to and it has heard nothing for twice as long, so that two ranks
never serve the same shard. If the server has not heard of the deputy for three times as long, it asks a witness, the
rank after the deputy. If the witness has not heard of it either, the server goes on alone. Otherwise it stands still
until it hears of the deputy; if it does not for six times as long, the server itself is cut off, and gives its shard
up. A rank that was itself stopped, or had no processor, has not been listening: as a deputy or a witness it waits
until it has listened for long enough.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hvd_sparse.servers.state import Standings, State


class Replicas(NamedTuple):
    """How servers are replicated.

    Attributes:
        age: number of updates that the deputy's replica may lack, at least 1.
        lease: seconds for which a server goes on without hearing from its deputy.
    """

    age: int
    lease: float = 5.0

    @property
    def silence(self) -> float:
        """Seconds without a sign of life after which a rank counts as gone."""
        return 2 * self.lease


class Replica(NamedTuple):
    """What a deputy holds of a server.

    Attributes:
        version: number of updates that its parameters have taken in.
        pushes: number of pushes that were applied.
        gathered_pushes: number of those that have not made an update yet.
        payload: the memory of the rest, see `payload_of`.
    """

    version: int
    pushes: int
    gathered_pushes: int
    payload: Any


def payload_of(state: State, standings: Standings) -> bytes:
    """A shard's state and its clients' standings as bytes: the arrays by name, the gathered sum, and the standings."""
    arrays = [state.arrays[name] for name in sorted(state.arrays)]
    parts = [*arrays, state.gathered, np.asarray(standings, np.int64)]
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


def state_of(replica: Replica, like: State, ranks: int) -> tuple[State, Standings]:
    """The state and standings from which `payload_of` made a payload.

    Args:
        replica: as received.
        like: the state of a shard of the same variables and optimizer.
        ranks: the number of clients.

    Raises:
        ValueError: if it has another length.
    """
    shapes = [(each.dtype, each.shape) for each in (like.arrays[name] for name in sorted(like.arrays))]
    shapes += [(like.gathered.dtype, like.gathered.shape), (np.dtype(np.int64), (len(Standings._fields), ranks))]
    sizes = [dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for dtype, shape in shapes]
    if len(replica.payload) != sum(sizes):
        raise ValueError(f"Expected a replica of {sum(sizes)} bytes, got {len(replica.payload)}.")
    ends = np.cumsum(sizes)
    *arrays, gathered, standings = (
        np.frombuffer(replica.payload[end - size : end], dtype).reshape(shape)
        for (dtype, shape), size, end in zip(shapes, sizes, ends, strict=True)
    )
    state = State(
        dict(zip(sorted(like.arrays), arrays, strict=True)),
        gathered,
        replica.gathered_pushes,
        replica.version,
        replica.pushes,
    )
    return state, Standings(*standings.tolist())


class Deputy:
    """Holds the replica of another rank's shard; for one thread at a time.

    Attributes:
        replicas: how servers are replicated.
        replica: the newest; None before the first.
        has_taken_over: whether this rank serves the shard now.
    """

    def __init__(self, replicas: Replicas):
        self.replicas = replicas
        self._heard_at = self._awake_at = self._listens_since = time.monotonic()
        self.replica: Replica | None = None
        self.has_taken_over = False

    def hears(self, replica: Replica | None) -> bool:
        """Notes that the server is alive, and may have sent a replica; returns whether the server is to go on."""
        if self.has_taken_over:
            return False
        self._heard_at = time.monotonic()
        self.replica = replica or self.replica
        return True

    def is_awake(self) -> None:
        """Is called often: a deputy that was itself stopped has not been listening, and must wait anew."""
        now = time.monotonic()
        if now - self._awake_at > self.replicas.lease:
            self._listens_since = now
        self._awake_at = now

    @property
    def has_listened(self) -> bool:
        """Whether this rank has listened for so long that a rank which it has not heard of counts as gone."""
        return time.monotonic() - self._listens_since >= self.replicas.silence

    def objection(self, version: int) -> str | None:
        """Why the shard cannot be taken over for a client that has seen this version of it; "" if it is too early."""
        self.is_awake()
        is_silent = time.monotonic() - self._heard_at >= self.replicas.silence
        if not (is_silent and self.has_listened) or self.replica is None:
            return ""
        if self.replica.version + self.replicas.age < version:
            return (
                f"its replica has {self.replica.version} of at least {version} updates, "
                f"more than replica_age={self.replicas.age} less"
            )
        return None


def deputy_of(shard: int, ranks: int) -> int:
    """The rank that has the replica of a shard."""
    return (shard + 1) % ranks


def guarded_by(rank: int, ranks: int) -> Sequence[int]:
    """The shards that a rank is the deputy of."""
    return [shard for shard in range(ranks) if deputy_of(shard, ranks) == rank and shard != rank]
