"""How ranks join: one collective for addresses and the secret, then a server and a client on each."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.compression.base import Compressor
from hvd_sparse.servers import wire
from hvd_sparse.servers.applying import ServedPieces
from hvd_sparse.servers.connections import Connections, ServerLostError
from hvd_sparse.servers.copies import Copies, SharedCopy
from hvd_sparse.servers.hosting import Hosting
from hvd_sparse.servers.meeting import Meeting, meet
from hvd_sparse.servers.pushing import cut, decoder, unpacked
from hvd_sparse.servers.replicas import Deputy, Replica, Replicas, Replicator, deputy_of, guarded_by, state_of
from hvd_sparse.servers.rules import Rule, Together
from hvd_sparse.servers.saving import Keeper
from hvd_sparse.servers.service import Service
from hvd_sparse.servers.shard import Parameters, Shard
from hvd_sparse.servers.state import State
from hvd_sparse.spec import Segment, Spec, describe
from hvd_sparse.transport.communicator import Communicator, Grid
from link import Caller, Client, Events, Patience, Server

_AGAIN = 0.5  # seconds until a server whose connection has ended is tried again
_FAREWELL = 60.0  # seconds for others to fetch the last parameters once all have ended


class Settings(NamedTuple):
    """What `ShardedServers` was asked for.

    Attributes:
        push: feeds back; None sends all.
        pull: without feedback; None sends all.
        rule: which pushes are applied when.
        interface: at which this rank's server listens; None is the address of this host.
        replicas: how servers are insured; None is not at all.
    """

    push: Compressor | None
    pull: Compressor | None
    rule: Rule
    interface: str | None
    replicas: Replicas | None = None

    def account(self) -> dict[str, Any]:
        """What all ranks must have in common, JSON-serialisable."""
        replicas = None if self.replicas is None else list(self.replicas)
        described = {"push": describe(self.push), "pull": describe(self.pull), "rule": describe(self.rule)}
        return {**described, "replicas": replicas}


class Member:
    """A rank's server and its connections to all servers.

    Attributes:
        shards: of all servers.
        shard: this rank's.
        connections: to all servers.
        keeper: of what this rank has to add to a checkpoint.
    """

    def __init__(
        self,
        shards: Sequence[Spec],
        service: Service,
        server: Server,
        client: Client,
        replicator: Replicator | None = None,
        replicas: Replicas | None = None,
    ):
        self.shards, self.shard, self.keeper = tuple(shards), service.shard, service.own.keeper
        self._service, self._server, self._client, self._replicator = service, server, client, replicator
        self.connections = Connections(client, shards, self.keeper.flight, replicas)
        self._closed = False
        atexit.register(self._finish_quietly)

    def telemetry(self) -> dict[str, Any]:
        """What this rank's client and server have done since they began; the server may do more while they are read.

        Returns:
            - step: pushes of this client.
            - density_pushed, density_pulled: values that were sent / elements of the vector and step.
            - bytes_pushed, bytes_pulled: payloads of its messages, those to its own server included.
            - waiting_ms: in a step, from when the gradient is chosen until the last server has answered, on average.
            - updates, pushes: that this rank's server has made, and applied.
            - staleness: {updates: pushes}, how many updates old the gradients were that it has applied.
            - queue: pushes that wait there now.
        """
        talk, shard = self.connections, self.shard
        elements = max(1, talk.number * sum(spec.size for spec in self.shards))
        return {
            "step": talk.number,
            "density_pushed": talk.sent.values / elements,
            "density_pulled": talk.received.values / elements,
            "bytes_pushed": talk.sent.bytes,
            "bytes_pulled": talk.received.bytes,
            "waiting_ms": 1e3 * talk.seconds_waiting / max(1, talk.number),
            "updates": shard.version,
            "pushes": shard.pushes,
            "staleness": dict(sorted(shard.staleness.items())),
            "queue": shard.queue,
        }

    def finish(self) -> np.ndarray | None:
        """Ends this rank's part: goes on to serve until all ranks have ended, then stops.

        Returns:
            The parameters as they stay, [d] float32, the same on every rank; None where it was called before.

        Raises:
            ServerLostError: where a server is gone.
        """
        if self._closed:
            return None
        try:
            final = self.connections.leave()
            self.connections.part()
            self._service.presence.wait_for_nobody(_FAREWELL)
        finally:
            self.abandon()
        return final

    def abandon(self) -> None:
        """Stops without waiting for anybody, for a rank that cannot go on."""
        self._closed = True
        atexit.unregister(self._finish_quietly)
        if self._replicator is not None:
            self._replicator.close()
        self._client.close()
        self._server.close()

    def _finish_quietly(self) -> None:
        """At the end of the process; one that ends by an error has the others find out, too, and does not serve on."""
        if getattr(sys, "last_value", None) is not None:
            self.abandon()
            return
        with contextlib.suppress(ServerLostError):
            self.finish()


def join(
    optimizer: keras.optimizers.Optimizer,
    variables: Sequence[Any],
    segments: tuple[Segment, ...],
    grid: Grid,
    settings: Settings,
    resumed: State | None = None,
) -> Member:
    """Starts this rank's server and connects it to all; a collective.

    All ranks begin with the variables of rank 0, or with what servers had when they were saved.

    Args:
        optimizer: not built; its copies run on the servers.
        variables: what it is to train.
        segments: their names and shapes.
        grid: the ranks.
        settings: the same on every rank, but for the interface.
        resumed: what this rank's server goes on with, where all have something.

    Raises:
        ValueError: on every rank alike, where they disagree, or what they are to go on with does not fit.
        OSError: on every rank alike, where one cannot listen.
    """
    world, size = grid.world, sum(segment.size for segment in segments)
    account = {
        "shapes": [list(segment.shape) for segment in segments],
        "optimizer": _config(optimizer),
        **settings.account(),
    }
    world.agree(account, "the model or the servers' settings", "servers.agree")
    shards = cut(Spec(size, grid, segments=segments, name="servers"), world.size)
    _begin_alike(variables, world)
    if settings.replicas is not None and world.size < 2:
        raise ValueError("Expected at least 2 ranks, of which one has the other's replica, got 1: leave replicas out.")
    service = serve(lambda shard: ServedPieces(optimizer, variables, shards[shard]), shards, world.rank, settings)
    if resumed is not None:
        _restore_together(service.shard, resumed, world)
    meeting = meet(world, range(world.size), settings.interface, "servers")
    member = start(service, shards, world.rank, meeting, settings)
    assert meeting.held is not None
    meeting.held.close()
    return member


def serve(parameters: Callable[[int], Parameters], shards: Sequence[Spec], rank: int, settings: Settings) -> Service:
    """What answers for this rank's shard, and may take over others, without a network yet.

    Args:
        parameters: makes a shard, by its number.
        shards: of all servers.
        rank: of this one.
        settings: the same on every rank.
    """
    kind = SharedCopy if isinstance(settings.rule, Together) else Copies

    def hosting(number: int) -> Hosting:
        copies = kind(settings.pull, shards[number])
        shard = Shard(parameters(number), copies, settings.rule, len(shards))
        return Hosting(shard, Keeper(shard, number, shards), decoder(settings.push, shards[number]))

    def adopt(number: int, replica: Replica) -> Hosting:
        adopted = hosting(number)
        adopted.shard.restore(*state_of(replica, adopted.shard.state(), len(shards)))
        adopted.keeper.write = own.keeper.write
        return adopted

    own = hosting(rank)
    guarded = [] if settings.replicas is None else guarded_by(rank, len(shards))
    deputies = {number: Deputy(settings.replicas) for number in guarded if settings.replicas is not None}
    return Service(rank, own, len(shards), deputies, adopt)


def start(service: Service, shards: Sequence[Spec], rank: int, meeting: Meeting, settings: Settings) -> Member:
    """Starts this rank's server and connects it to all, which may not have started yet.

    Args:
        service: of this rank.
        shards: of all servers.
        rank: of this one.
        meeting: of all of them.
        settings: the same on every rank.
    """
    replicas = settings.replicas
    protocol, subject = wire.protocol(shards[0].size, replicas is not None), _subject(shards, settings)
    events = _Departures(service.gone)
    server = Server(meeting.addresses[rank], rank, subject, meeting.secret, protocol, service.handle, events)
    silence = {} if replicas is None else {"silence": 2 * replicas.lease}
    patience = Patience(work=math.inf, again=_AGAIN, **silence)
    client = Client(meeting.addresses, Caller(rank, subject, meeting.secret, protocol, patience, events=events))
    replicator = None if replicas is None else _replicator(service, rank, len(shards), client, replicas)
    return Member(shards, service, server, client, replicator, replicas)


def _replicator(service: Service, rank: int, ranks: int, client: Client, replicas: Replicas) -> Replicator:
    deputy = deputy_of(rank, ranks)
    return Replicator(service.shard, rank, deputy, client, replicas, service.lock, service.own.advance, service.depose)


class _Departures(Events):
    """Tells a service whose connection has ended."""

    def __init__(self, gone: Callable[[int], None]):
        super().__init__("hvd_sparse servers")
        self._gone = gone

    def gone(self, asker: int) -> None:
        self._gone(asker)


def _begin_alike(variables: Sequence[Any], world: Communicator) -> None:
    """Gives all ranks the variables of rank 0."""
    flat = tf.concat([tf.reshape(tf.convert_to_tensor(each), [-1]) for each in variables], 0)
    first = world.broadcast(flat, 0, "servers.begin")
    for variable, value in zip(variables, unpacked(first, [each.shape for each in variables]), strict=True):
        variable.assign(value)


def _restore_together(shard: Shard, state: State, world: Communicator) -> None:
    problem = ""
    try:
        shard.restore(state)
    except ValueError as complaint:
        problem = str(complaint)
    problems = world.gather_descriptions(problem, "servers.restore")
    told = [f"rank {rank}: {each}" for rank, each in zip(world.ranks, problems, strict=True) if each]
    if told:
        raise ValueError("; ".join(told))


def _config(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """The optimizer's class and the settings that say how servers apply gradients."""
    config = {key: value for key, value in optimizer.get_config().items() if key != "learning_rate"}
    return {"class": type(optimizer).__name__, **json.loads(json.dumps(config, default=str))}


def _subject(shards: Sequence[Spec], settings: Settings) -> str:
    account = {"sizes": [spec.size for spec in shards], **settings.account()}
    return hashlib.sha256(json.dumps(account, sort_keys=True).encode()).hexdigest()
