"""Sharded servers with clients and messages in simulated time: a whole job in one process, reproducible to the bit.

P clients and P servers run the library's own code: the clients' pushes and copies, and the servers' shards, rules and
copies. Instead of a network there is a queue of events: a client's computation ends, a push arrives, an answer arrives.
Computations take times drawn by a seed, messages take bytes / rate + latency. A job is therefore as asynchronous here
as in reality: a gradient is stale by the updates that were made while it was computed and sent.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from hvd_sparse.servers import local
from hvd_sparse.servers.applying import ServedPieces
from hvd_sparse.servers.copies import Copies, SharedCopy
from hvd_sparse.servers.messages import Entries, Pull, Push
from hvd_sparse.servers.pushing import Copy, Pushes, cut, entries
from hvd_sparse.servers.rules import Together
from hvd_sparse.servers.settings import Settings
from hvd_sparse.servers.shard import Shard
from hvd_sparse.spec import Segment, Spec
from hvd_sparse.transport.communicator import Grid

HEADER = 100  # bytes, approximately


@dataclasses.dataclass(frozen=True)
class Pace:
    """The durations of computations and messages, in simulated seconds.

    Attributes:
        computing: median time per batch.
        spread: standard deviation of its logarithm, which is normally distributed.
        slowness: factor on the computation time of each client.
        bandwidth: bytes per second of each connection between a client and a server, each way.
        latency: latency of a message.
        seed: seed of the computation times.
    """

    computing: float
    spread: float
    slowness: tuple[float, ...]
    bandwidth: float
    latency: float
    seed: int

    def durations(self, client: int) -> Callable[[], float]:
        """Makes a function that draws a client's computation times."""
        random, median = np.random.default_rng([self.seed, client]), self.computing * self.slowness[client]
        return lambda: float(median * np.exp(self.spread * random.standard_normal()))

    def flight(self, message: Entries) -> float:
        """The time until a message arrives."""
        return self.latency + (HEADER + message.nbytes) / self.bandwidth


class Work(Protocol):
    """What clients compute, batch by batch; each takes the next batch when it is ready.

    Attributes:
        batches: number of batches of all clients, in the whole training.
    """

    batches: int

    def gradient(self, batch: int, parameters: np.ndarray) -> tf.Tensor:
        """The gradient [d] float32 of a batch's loss at parameters [d] float32."""

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted as a synchronous job counts them: pushes of all clients / P."""


class _Client:
    """A client between its messages: it computes, or waits for answers of `awaited` servers."""

    def __init__(self, settings: Settings, shards: Sequence[Spec], duration: Callable[[], float]):
        self.copy, self.duration = Copy(shards), duration
        self._pushes = Pushes(settings.push, shards)
        self._is_ahead = local.looks_ahead(settings.push)
        size = sum(spec.size for spec in shards)
        self.choose = tf.function(self._pushes.choose, [[tf.TensorSpec([size])]], autograph=False)
        self.number = self.awaited = 0
        self.applied = [0] * len(shards)  # pushes of all clients, as reported by each server
        self.since = self.waited = 0.0

    def parameters(self) -> np.ndarray:
        """Where the gradient is computed, [d] float32."""
        return self.copy.values - self._pushes.waiting().numpy() if self._is_ahead else self.copy.values

    def takes(self, server: int, pull: Pull) -> None:
        """Receives an answer."""
        self.copy.take(server, pull.number, pull)
        self.applied[server] = pull.pushes


class Job:
    """P clients, and a server for each; `run` lets simulated time pass.

    Attributes:
        now: simulated seconds since the beginning.
        finished: number of batches whose gradients were answered by all servers.
        sent: bytes of the clients' messages, without headers.
        received: bytes of the servers' messages, without headers.
    """

    def __init__(self, work: Work, variables: Sequence[Any], optimizer: Any, settings: Settings, pace: Pace):
        """Takes the work, the trained variables, an unbuilt Keras optimizer, the job's settings and its pace."""
        ranks = len(pace.slowness)
        self._work, self._pace, self._shards = work, pace, shards_of(variables, ranks)
        self._clients_optimizer: Any = None
        served, own = optimizer, None
        if local.sends_updates(settings.push):
            optimizer.build(variables)
            self._clients_optimizer, served = optimizer, local.subtraction(optimizer)
            own = local.optimizer_of(optimizer)
        kind = SharedCopy if isinstance(settings.rule, Together) else Copies
        self._servers = [
            Shard(ServedPieces(served, variables, spec), kind(settings.pull, spec), settings.rule, ranks)
            for spec in self._shards
        ]
        specs = [spec._replace(optimizer=own) for spec in self._shards]
        self._clients = [_Client(settings, specs, pace.durations(client)) for client in range(ranks)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._scheduled = self._taken = 0
        self.now, self.finished = 0.0, 0
        self.sent = self.received = 0
        for client, each in enumerate(self._clients):
            for server, shard in enumerate(self._servers):
                each.takes(server, shard.begin(client))
            self._compute(client)

    def run(self, finished: int) -> None:
        """Lets time pass until `finished` batches are finished, or none are left."""
        while self._events and self.finished < finished:
            self.now, _, happens = heapq.heappop(self._events)
            happens()

    def parameters(self) -> np.ndarray:
        """The servers' parameters [d] float32."""
        return np.concatenate([server.published().values for server in self._servers])

    def copy(self, client: int) -> np.ndarray:
        """A client's copy of the parameters [d] float32."""
        return self._clients[client].copy.values

    def staleness(self) -> dict[int, int]:
        """The staleness, in updates, of gradients when they were applied: {updates: pushes}, over all servers."""
        total = sum((server.staleness for server in self._servers), collections.Counter())
        return dict(sorted(total.items()))

    def waited(self) -> float:
        """The share of time that clients have waited for answers."""
        return sum(client.waited for client in self._clients) / (self.now * len(self._clients))

    def _after(self, seconds: float, happens: Callable[[], None]) -> None:
        """Schedules an event; simultaneous events happen in the order in which they were scheduled."""
        self._scheduled += 1
        heapq.heappush(self._events, (self.now + seconds, self._scheduled, happens))

    def _compute(self, client: int) -> None:
        """A client takes the next batch, or leaves if there is none."""
        if self._taken < self._work.batches:
            batch, self._taken = self._taken, self._taken + 1
            self._after(self._clients[client].duration(), lambda: self._push(client, batch))
            return
        for server in range(len(self._servers)):
            self._after(self._pace.latency, lambda server=server: self._leave(client, server))

    def _push(self, client: int, batch: int) -> None:
        each = self._clients[client]
        gradient = self._work.gradient(batch, each.parameters())
        rate = self._work.rate(min(each.applied) // len(self._clients))
        if self._clients_optimizer is not None:
            self._clients_optimizer.learning_rate = rate
        each.number, each.awaited, each.since = each.number + 1, len(self._servers), self.now
        for server, parts in enumerate(each.choose([gradient])):
            push = Push(each.number, rate, entries([part.numpy() for part in parts]))
            self.sent += push.gradient.nbytes
            self._after(
                self._pace.flight(push.gradient),
                lambda server=server, push=push: self._apply(client, server, push),
            )

    def _apply(self, client: int, server: int, push: Push) -> None:
        self._answer(server, self._servers[server].push(client, push))

    def _leave(self, client: int, server: int) -> None:
        self._answer(server, self._servers[server].leave(client))

    def _answer(self, server: int, answers: Sequence[tuple[int, Pull]]) -> None:
        for client, pull in answers:
            self.received += pull.parameters.nbytes
            self._after(
                self._pace.flight(pull.parameters),
                lambda client=client, pull=pull: self._take(client, server, pull),
            )

    def _take(self, client: int, server: int, pull: Pull) -> None:
        each = self._clients[client]
        each.takes(server, pull)
        each.awaited -= 1
        if not each.awaited:
            each.waited += self.now - each.since
            self.finished += 1
            self._compute(client)


def shards_of(variables: Sequence[Any], servers: int) -> list[Spec]:
    """The servers' shards of Keras variables, for one process that simulates all ranks."""
    segments = tuple(Segment(f"{number}", tuple(each.shape)) for number, each in enumerate(variables))
    size = sum(segment.size for segment in segments)
    return cut(Spec(size, Grid.lone(), segments=segments, name="servers"), servers)
