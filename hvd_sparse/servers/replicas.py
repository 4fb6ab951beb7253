"""What becomes of a server's shard when the server is gone: its deputy, the next rank, has a replica and takes over.

A server sends its deputy what it has every so many updates, and makes no more than so many beyond what the deputy has
confirmed. It serves on a lease: each confirmation lets it go on for some seconds, and without one it applies nothing.
The deputy takes over when a client asks it to and it has heard nothing for twice as long, so that never two serve the
same shard. Where the server has not heard of the deputy for three times as long, it asks a witness, the rank after the
deputy. If this has not heard of it either, the server goes on alone; else it stands still until it hears of the deputy,
and where it does not for six times as long, it is itself cut off, and gives its shard up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hvd_sparse.servers.shard import Shard
from hvd_sparse.servers.state import Standings, State
from link import Client, LinkError

_ALONE = 3.0  # leases without a deputy, until a server goes on without one
_CUT_OFF = 6.0  # leases without a deputy that may be there, until it gives up
_log = logging.getLogger(__name__)


class Replicas(NamedTuple):
    """How servers are insured.

    Attributes:
        age: how many updates the deputy's replica may lack, at least 1.
        lease: seconds for which a server goes on without having heard of its deputy.
    """

    age: int
    lease: float = 5.0


class Replica(NamedTuple):
    """What a deputy holds of a server.

    Attributes:
        version: how many updates its parameters have taken in.
        pushes: how many pushes were applied.
        gathered_pushes: how many of them have not made an update yet.
        payload: the memory of the rest, see `payload_of`.
    """

    version: int
    pushes: int
    gathered_pushes: int
    payload: Any


def payload_of(state: State, standings: Standings) -> bytes:
    """A shard's state, and how its clients stand: the arrays by name, what is gathered, and the standings."""
    arrays = [state.arrays[name] for name in sorted(state.arrays)]
    parts = [*arrays, state.gathered, np.asarray(standings, np.int64)]
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


def state_of(replica: Replica, like: State, ranks: int) -> tuple[State, Standings]:
    """What `payload_of` got.

    Args:
        replica: that came.
        like: the state of a shard of the same variables and optimizer.
        ranks: how many clients there are.

    Raises:
        ValueError: where it is of another length.
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
        replica: the newest; None before the first.
        has_taken_over: whether this rank serves the shard now.
    """

    def __init__(self, replicas: Replicas):
        self._replicas = replicas
        self._heard_at = self._awake_at = time.monotonic()
        self.replica: Replica | None = None
        self.has_taken_over = False

    def hears(self, replica: Replica | None) -> bool:
        """The server is there, and may have sent a replica; says whether it is to go on."""
        if self.has_taken_over:
            return False
        self._heard_at = time.monotonic()
        self.replica = replica or self.replica
        return True

    @property
    def silence(self) -> float:
        """Seconds after which a server counts as gone."""
        return 2 * self._replicas.lease

    def is_awake(self) -> None:
        """To be called often: a rank that was stopped itself has not been listening, and has to wait anew."""
        now = time.monotonic()
        if now - self._awake_at > self._replicas.lease:
            self._heard_at = now
        self._awake_at = now

    def objection(self, version: int) -> str | None:
        """Why the shard cannot be taken over for a client that has seen a version of it; "" where it is too early."""
        self.is_awake()
        if time.monotonic() - self._heard_at < self.silence or self.replica is None:
            return ""
        if self.replica.version + self._replicas.age < version:
            return (
                f"its replica has {self.replica.version} of at least {version} updates, "
                f"more than replica_age={self._replicas.age} less"
            )
        return None


class Replicator:
    """Keeps a server's lease and its deputy's replica, on a thread of its own.

    Args:
        shard: that this rank serves.
        number: of the shard, and of this rank.
        ranks: how many there are.
        client: of this rank.
        replicas: how it is insured.
        lock: held while the shard is looked at or changed.
        advance: lets the shard go on, and gives the answers that it has; called with the lock.
        depose: called with the lock, where the deputy has taken over, or is to.
        wakes: called often, with the lock.
    """

    def __init__(
        self,
        shard: Shard,
        number: int,
        ranks: int,
        client: Client,
        replicas: Replicas,
        lock: Any,
        advance: Callable[[], None],
        depose: Callable[[], None],
        wakes: Callable[[], None],
    ):
        self._shard, self._number, self._ranks, self._client = shard, number, ranks, client
        self._deputy = deputy_of(number, ranks)
        self._replicas, self._lock, self._advance, self._depose, self._wakes = replicas, lock, advance, depose, wakes
        self._ended = threading.Event()
        self._heard_at = time.monotonic()
        self._sent_version: int | None = None
        self._alone = False
        shard.insure(limit=-1, until=0.0)
        self._thread = threading.Thread(target=self._run, name="servers-replicator", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops; calling it again does nothing."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        tick = min(self._replicas.lease / 5, 0.5)
        while not self._ended.is_set():
            began = time.monotonic()
            if not self._tell(began):
                return
            if not self._shard.has_news.wait(tick):
                continue
            self._shard.has_news.clear()

    def _tell(self, now: float) -> bool:
        """Sends a sign of life, or a replica where one is due; False where the shard is served by another one."""
        with self._lock:
            self._wakes()
            due = self._sent_version is None or self._shard.version - self._sent_version >= self._half
            version, standings = self._shard.version, self._shard.standings()
            state = self._shard.state() if due else None
        fields: dict[str, Any] = {"shard": self._number, "there": state is not None}
        fields |= {"version": version, "pushes": 0, "gathered": 0}
        payload = b""
        if state is not None:
            fields |= {"pushes": state.pushes, "gathered": state.gathered_pushes}
            payload = payload_of(state, standings)
        try:
            goes_on = self._client.ask(self._deputy, "replica", payload, check=_goes_on, **fields).result()
        except LinkError:
            return self._without_deputy(now)
        with self._lock:
            if not goes_on:
                self._depose()
                return False
            self._heard_at, self._alone = now, False
            self._sent_version = version if state is not None else self._sent_version
            assert self._sent_version is not None
            self._shard.insure(self._sent_version + self._replicas.age, now + self._replicas.lease)
            self._advance()
        return True

    @property
    def _half(self) -> int:
        """Updates after which a replica is sent, so that the server need not wait for the confirmation."""
        return max(1, self._replicas.age // 2)

    def _without_deputy(self, now: float) -> bool:
        self._sent_version = None  # it may come again with nothing
        silence = (now - self._heard_at) / self._replicas.lease
        if not self._alone and silence > _ALONE:
            self._alone = self._deputy_is_gone()
            if not self._alone and silence > _CUT_OFF:
                return self._give_up()
            if self._alone:
                _log.warning(
                    "hvd_sparse servers: rank %d, which had the replica of part %d of the parameters, is gone. "
                    "Training goes on without a replica of it.",
                    self._deputy,
                    self._number,
                )
        if self._alone:
            with self._lock:
                self._shard.insure(None, None)
                self._advance()
        self._ended.wait(min(self._replicas.lease / 5, 0.5))
        return True

    def _deputy_is_gone(self) -> bool:
        """Whether the witness says so; of two ranks nobody can tell."""
        witness = deputy_of(self._deputy, self._ranks)
        if witness == self._number:
            return True
        try:
            return not self._client.ask(witness, "heard", check=_goes_on, rank=self._deputy).result()
        except LinkError:
            return False

    def _give_up(self) -> bool:
        _log.warning("hvd_sparse servers: rank %d is cut off from its deputy, and serves no more.", self._number)
        with self._lock:
            self._depose()
        return False


def _goes_on(kind: str, fields: Mapping[str, Any], payload: Any) -> bool:
    return kind == "done"


def deputy_of(shard: int, ranks: int) -> int:
    """The rank that has the replica of a shard."""
    return (shard + 1) % ranks


def guarded_by(rank: int, ranks: int) -> Sequence[int]:
    """The shards whose deputy a rank is."""
    return [shard for shard in range(ranks) if deputy_of(shard, ranks) == rank and shard != rank]
