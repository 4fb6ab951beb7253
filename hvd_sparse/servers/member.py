"""A rank's part: its server, its connections to all servers, and how they start and stop."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hvd_sparse.servers import wire
from hvd_sparse.servers.connections import Connections, ServerLostError
from hvd_sparse.servers.replicating import Replicator
from hvd_sparse.servers.service import Service
from hvd_sparse.servers.settings import Settings
from hvd_sparse.spec import Spec
from hvd_sparse.transport.meeting import Meeting, Ticket
from link import Caller, Client, Events, Patience, Server

_NAME = "hvd_sparse servers"
_OUTAGE = 30.0  # seconds without a sign of life that nobody stands in for; Horovod's collectives survive as many
_AGAIN = 0.5  # seconds before reconnecting to a server whose connection has ended
_FAREWELL = 60.0  # seconds for others to fetch the final parameters once all have finished


class Guest:
    """A rank's connections to all servers, without its own server: its process was gone, and has come back.

    Attributes:
        shards: of all servers.
        connections: to all servers.
        keeper: of this rank's part of a checkpoint, which a guest never has to provide.
        ticket: lets this rank come back.
    """

    def __init__(self, shards: Sequence[Spec], client: Client, ticket: Ticket, keeper: Any, settings: Settings):
        """Begins at all servers and pulls all parameters."""
        self.shards, self.keeper, self.ticket, self._client = tuple(shards), keeper, ticket, client
        self.connections = Connections(client, shards, keeper.flight, settings.replicas, settings.pull)
        self._closed = False
        atexit.register(self._finish_quietly)

    def telemetry(self) -> dict[str, Any]:
        """What this rank's client has done since it began.

        Returns:
            - step: pushes of this client.
            - density_pushed, density_pulled: values sent per element of the vector and step.
            - bytes_pushed, bytes_pulled: payloads of its messages, including those to its own server.
            - waiting_ms: average time in a step from the selection until the last server has answered.
            - updates_lost: updates of lost servers that this client had seen and their deputies had not.
        """
        talk = self.connections
        elements = max(1, talk.number * sum(spec.size for spec in self.shards))
        return {
            "step": talk.number,
            "density_pushed": talk.sent.values / elements,
            "density_pulled": talk.received.values / elements,
            "bytes_pushed": talk.sent.bytes,
            "bytes_pulled": talk.received.bytes,
            "waiting_ms": 1e3 * talk.seconds_waiting / max(1, talk.number),
            "updates_lost": talk.updates_lost,
        }

    def finish(self) -> np.ndarray | None:
        """Ends this rank's part: waits until all ranks have finished; a rank with a server serves until then.

        Returns:
            The final parameters, [d] float32, the same on every rank; None if it was called before.

        Raises:
            ServerLostError: if a server is gone.
        """
        if self._closed:
            return None
        try:
            final = self.connections.leave()
            self._part()
        finally:
            self.abandon()
        return final

    def abandon(self) -> None:
        """Stops without waiting for other ranks, for a rank that cannot continue."""
        self._closed = True
        atexit.unregister(self._finish_quietly)
        self._client.close()

    def _part(self) -> None:
        self.connections.part()

    def _finish_quietly(self) -> None:
        """At the end of the process; a process that ends with an error stops serving, and the others find out."""
        if getattr(sys, "last_value", None) is not None:
            self.abandon()
            return
        with contextlib.suppress(ServerLostError):
            self.finish()


class Member(Guest):
    """A rank's server and its connections to all servers.

    Attributes:
        shard: this rank's shard.
    """

    def __init__(
        self,
        shards: Sequence[Spec],
        service: Service,
        server: Server,
        client: Client,
        ticket: Ticket,
        settings: Settings,
        replicator: Replicator | None = None,
    ):
        self.shard, self._service, self._server, self._replicator = service.shard, service, server, replicator
        super().__init__(shards, client, ticket, service.own.keeper, settings)

    def telemetry(self) -> dict[str, Any]:
        """What this rank's client and server have done since they began; the server may do more during the read.

        Returns:
            Everything that a guest reports, and
            - updates, pushes: updates that this rank's server has made, and pushes that it has applied.
            - staleness: {updates: pushes}, how many updates old the gradients were when they were applied.
            - queue: pushes that wait there now.
        """
        shard = self.shard
        return {
            **super().telemetry(),
            "updates": shard.version,
            "pushes": shard.pushes,
            "staleness": dict(sorted(shard.staleness.items())),
            "queue": shard.queue,
        }

    def abandon(self) -> None:
        self._end_replicas()
        super().abandon()
        self._server.close()

    def _part(self) -> None:
        self._end_replicas()  # nothing changes after this
        super()._part()
        self._service.presence.wait_for_nobody(_FAREWELL)

    def _end_replicas(self) -> None:
        if self._replicator is not None:
            self._replicator.close()


def start(service: Service, shards: Sequence[Spec], rank: int, meeting: Meeting, settings: Settings) -> Member:
    """Starts this rank's server and connects it to all, which may not have started yet.

    Args:
        service: of this rank.
        shards: of all servers.
        rank: this one.
        meeting: of all ranks.
        settings: the same on every rank.
    """
    ticket = Ticket(rank, meeting.addresses, meeting.secret)
    caller = caller_of(shards, ticket, settings)
    events = _Departures(service.gone)
    address = meeting.addresses[rank]
    server = Server(address, rank, caller.subject, meeting.secret, caller.protocol, service.handle, events)
    client = Client(meeting.addresses, caller._replace(events=events))
    replicator = None if settings.replicas is None else Replicator(service, client, settings.replicas)
    return Member(shards, service, server, client, ticket, settings, replicator)


def caller_of(shards: Sequence[Spec], ticket: Ticket, settings: Settings) -> Caller:
    """The identity with which a rank's client addresses the servers."""
    replicas = settings.replicas
    protocol = wire.protocol(shards[0].size, replicas is not None)
    silence = _OUTAGE if replicas is None else replicas.silence
    patience = Patience(silence, work=math.inf, again=_AGAIN)
    return Caller(ticket.rank, _subject(shards, settings), ticket.secret, protocol, patience, events=Events(_NAME))


class _Departures(Events):
    """Tells a service when a client's connection has ended."""

    def __init__(self, gone: Callable[[int], None]):
        super().__init__(_NAME)
        self._gone = gone

    def gone(self, asker: int) -> None:
        self._gone(asker)


def _subject(shards: Sequence[Spec], settings: Settings) -> str:
    account = {"sizes": [spec.size for spec in shards], **settings.account()}
    return hashlib.sha256(json.dumps(account, sort_keys=True).encode()).hexdigest()
