"""A rank's service behind the link: its own shard, the shards that it has taken over, and replicas of others."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

import numpy as np

from hvd_sparse.servers import wire
from hvd_sparse.servers.hosting import Hosting
from hvd_sparse.servers.messages import Entries, MessageError, Pull
from hvd_sparse.servers.presence import Presence
from hvd_sparse.servers.replicas import Deputy, Replica
from hvd_sparse.servers.shard import Shard
from link import Request, WireError

_log = logging.getLogger(__name__)

Adopt = Callable[[int, Replica], Hosting]
"""Makes of a shard's number and its replica what serves it."""


class Service:
    """Takes requests on the thread of the link's server; other threads hold `lock` when they touch shards.

    A client says goodbye (`part`) when all servers have sent it the final parameters.

    Attributes:
        number: of this rank, and of its shard.
        ranks: the number of ranks.
        own: this rank's shard.
        lock: of all shards that are served here.
        presence: of the clients that have neither parted nor gone.
    """

    def __init__(self, number: int, own: Hosting, ranks: int, deputies: dict[int, Deputy], adopt: Adopt):
        """Takes this rank's number and shard, the number of ranks, and what it does for the shards of others.

        Args:
            number: of the rank, and of its shard.
            own: that shard.
            ranks: the number of ranks.
            deputies: the holders of other shards' replicas, by number.
            adopt: makes the server of such a shard.
        """
        self.own, self.lock = own, threading.RLock()
        self.number, self.ranks, self._deputies, self._adopt = number, ranks, deputies, adopt
        self._hosted = {number: own}
        self._heard_at: dict[int, float] = {}
        self._without_server: set[int] = set()
        self._told: dict[int, np.ndarray] = {}
        self.presence = Presence(ranks)

    @property
    def shard(self) -> Shard:
        """This rank's own shard."""
        return self.own.shard

    def handle(self, request: Request) -> None:
        """Handles a request; its answer is sent now, or when the shard has one. WireError if it does not fit."""
        with self.lock:
            self.presence.shows(request.asker)
            self._heard_at[request.asker] = time.monotonic()
            self.wakes()
            try:
                self._dispatch(request)
            except MessageError as complaint:
                raise WireError(str(complaint)) from None

    def gone(self, client: int) -> None:
        """Notes that a client's connection has ended."""
        with self.lock:
            for hosting in self._hosted.values():
                hosting.gone(client)
            self.presence.ends(client)

    def wakes(self) -> None:
        """Is called often; with the lock."""
        for deputy in self._deputies.values():
            deputy.is_awake()

    def depose(self) -> None:
        """Gives up this rank's shard, which another rank serves now; with the lock."""
        if self._hosted.pop(self.number, None) is not None:
            self.own.move_out()

    def _dispatch(self, request: Request) -> None:
        if request.kind in wire.OF_SERVICES:
            getattr(self, f"_{request.kind}")(request)
            return
        hosting = self._hosted.get(request.fields["shard"])
        if hosting is None:
            request.answer("moved")
        elif request.kind == "keep":
            applied = wire.numbers_of(request.payload, self.ranks)
            _aside(request, lambda: _kept(request, hosting, applied))
        elif request.kind == "write":
            number = request.fields["checkpoint"]
            _aside(request, lambda: request.answer("written", sha256=hosting.keeper.write_kept(number)))
        else:
            hosting.handle(request)

    def _average(self, request: Request) -> None:
        told = wire.entries_of(request.fields, request.payload)
        if told.indices is not None or any(len(other) != len(told.values) for other in self._told.values()):
            raise MessageError(f"{len(told.values)} values that are not trained, of which others have another number")
        self._told[request.asker] = told.values
        told_by_all = np.stack([self._told[client] for client in sorted(self._told)])
        mean = told_by_all.mean(0, np.float64)
        pull = Pull(0, self.shard.version, self.shard.pushes, Entries(np.asarray(mean, np.float32)))
        request.answer("pull", wire.payload(pull.parameters), **wire.pull_fields(pull))

    def _part(self, request: Request) -> None:
        request.answer("done")
        self.presence.ends(request.asker)

    def _replica(self, request: Request) -> None:
        said = request.fields
        deputy = self._deputy(said["shard"])
        came = Replica(said["version"], said["pushes"], said["gathered"], request.payload) if said["there"] else None
        request.answer("done" if deputy.hears(came) else "moved")

    def _heard(self, request: Request) -> None:
        """As a witness: whether a rank has been heard of lately. It has a deputy itself, so it would have been."""
        rank, now = request.fields["rank"], time.monotonic()
        heard_at = -math.inf if rank in self._without_server else self._heard_at.get(rank, -math.inf)
        if any(now - heard_at < each.replicas.silence for each in self._deputies.values()):
            request.answer("done")
        elif rank in self._without_server or all(each.has_listened for each in self._deputies.values()):
            request.answer("not_yet")
        else:
            request.answer("failed", problem="this rank has not listened for long enough itself")

    def _returned(self, request: Request) -> None:
        """Notes that a rank whose process was gone is a client again, which neither serves nor has replicas."""
        self._without_server.add(request.asker)
        request.answer("done")

    def _take_over(self, request: Request) -> None:
        shard = request.fields["shard"]
        deputy = self._deputy(shard)
        objection = None if deputy.has_taken_over else deputy.objection(request.fields["version"])
        if objection is not None:
            request.answer("failed", problem=objection) if objection else request.answer("not_yet")
            return
        if not deputy.has_taken_over:
            self._take(shard, deputy, request.fields["version"])
        request.answer("done")

    def _take(self, shard: int, deputy: Deputy, version: int) -> None:
        assert deputy.replica is not None, "else it objects"
        self._hosted[shard] = self._adopt(shard, deputy.replica)
        deputy.has_taken_over = True
        for client in self.presence.absent(self.ranks):
            self._hosted[shard].gone(client)
        _log.warning(
            "hvd_sparse servers: the server of rank %d was lost, and rank %d has taken over its part of the "
            "parameters. Its replica has %d updates; at least %d later ones are lost.",
            shard,
            self.number,
            deputy.replica.version,
            max(0, version - deputy.replica.version),
        )

    def _deputy(self, shard: int) -> Deputy:
        deputy = self._deputies.get(shard)
        if deputy is None:
            raise MessageError(f"shard {shard}, of which this rank has no replica")
        return deputy


def _kept(request: Request, hosting: Hosting, applied: list[int]) -> None:
    hosting.keeper.keep(applied)
    request.answer("done")


def _aside(request: Request, work: Callable[[], None]) -> None:
    """Does slow work on a thread of its own; tells the asker if it fails."""

    def run() -> None:
        try:
            work()
        except Exception as error:
            request.answer("failed", problem=wire.problem(error))

    threading.Thread(target=run, name="servers-keeper", daemon=True).start()
