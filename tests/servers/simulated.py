"""A job of P clients and servers in one process; a seed decides whether messages arrive, are lost or are repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.servers import local
from hvd_sparse.servers.applying import LazyPieces, ServedPieces
from hvd_sparse.servers.copies import Copies, SharedCopy
from hvd_sparse.servers.messages import Entries, Pull, Push
from hvd_sparse.servers.pushing import Copy, Pushes, cut, entries
from hvd_sparse.servers.rules import InOrderOfArrival, Rule, Together
from hvd_sparse.servers.shard import Shard
from hvd_sparse.spec import Segment, Spec
from hvd_sparse.transport.communicator import Grid
from tests.simulation import same_bits

SHAPES = ((3, 4), (5,), ())


def variables(random: np.random.Generator) -> list[keras.Variable]:
    return [keras.Variable(random.standard_normal(shape).astype(np.float32), name="weight") for shape in SHAPES]


def whole_of(ranks: int) -> Spec:
    """A vector of `ranks` ranks, all of which this process simulates."""
    grid = Grid.lone()
    segments = tuple(Segment(f"weight{number}", shape) for number, shape in enumerate(SHAPES))
    return Spec(sum(segment.size for segment in segments), grid, segments=segments)


def some(random: np.random.Generator, size: int) -> Entries:
    """Entries of a vector of this size: of a few places or, sometimes, of all."""
    if random.random() < 0.2:
        return Entries(random.standard_normal(size).astype(np.float32))
    places = random.permutation(size)[: random.integers(0, size + 1)].astype(np.int32)
    return Entries(random.standard_normal(len(places)).astype(np.float32), places)


class Flight(NamedTuple):
    """A client's messages of one step: the push for each server."""

    number: int
    pushes: dict[int, Push]


class Job:
    """P clients and servers; `step` lets one client take a step."""

    def __init__(
        self,
        ranks: int,
        optimizer: Callable[[], keras.optimizers.Optimizer],
        push: Compressor | None = None,
        pull: Compressor | None = None,
        rule: Rule | None = None,
        seed: int = 0,
        pieces: type[ServedPieces] | type[LazyPieces] = ServedPieces,
    ):
        start = variables(np.random.default_rng(seed))
        self.ranks = ranks
        self.shards = cut(whole_of(ranks), ranks)
        self.rule = rule or InOrderOfArrival()
        feeding = push if push is None or push.feeds_back else ErrorFeedback(push)
        kind, own = SharedCopy if isinstance(self.rule, Together) else Copies, optimizer()
        served = local.subtraction(own) if local.sends_updates(feeding) else own
        self.servers = [Shard(pieces(served, start, spec), kind(pull, spec), self.rule, ranks) for spec in self.shards]
        self.optimizers = [optimizer() for _ in range(ranks)]  # those of the clients
        self.pushing = [
            Pushes(feeding, [spec._replace(optimizer=local.optimizer_of(each)) for spec in self.shards])
            for each in self.optimizers
        ]
        self.copies = [Copy(self.shards) for _ in range(ranks)]
        self.numbers = [0] * ranks
        self.flights: dict[int, dict[int, Push]] = {}
        self.answers: list[tuple[int, int, Pull]] = []
        for client in range(ranks):
            self.begin(client)

    def begin(self, client: int) -> None:
        for number, server in enumerate(self.servers):
            self.copies[client].take(number, 0, server.begin(client))
        self.numbers[client] = 0

    def send(self, client: int, gradient: np.ndarray, rate: float = 0.1) -> None:
        """A client sends its gradient to all servers."""
        assert client not in self.flights
        chosen = self.pushing[client].choose([tf.constant(gradient)])
        self.numbers[client] += 1
        self.flights[client] = {
            server: Push(self.numbers[client], rate, entries([part.numpy() for part in parts]))
            for server, parts in enumerate(chosen)
        }

    def deliver(self, client: int, server: int, lost: bool = False) -> None:
        """A push arrives; the answers that it releases arrive too, unless this client's own is lost."""
        push = self.flights[client][server]
        for other, pull in self.servers[server].push(client, push):
            if not (lost and other == client):
                self.arrive(other, server, pull)

    def begin_again(self, client: int, server: int) -> None:
        """A client reconnects to one server where it was, with its push still in flight."""
        answered = self.numbers[client] - (server in self.flights.get(client, {}))
        pull = self.servers[server].begin(client, answered)
        self.copies[client].take(server, pull.number, pull)
        if pull.number > answered:
            self.arrive(client, server, pull)

    def arrive(self, client: int, server: int, pull: Pull) -> None:
        self.copies[client].take(server, self.numbers[client], pull)
        expected = self.servers[server]._copies.of(client)
        same_bits(self.copies[client].of(server), expected)
        del self.flights[client][server]
        if not self.flights[client]:
            del self.flights[client]

    def step(self, client: int, gradient: np.ndarray, rate: float = 0.1) -> None:
        """A complete step of a client, without losses, when it need not wait for others."""
        self.send(client, gradient, rate)
        for server in range(self.ranks):
            self.deliver(client, server)
        assert client not in self.flights

    def parameters(self) -> np.ndarray:
        return np.concatenate([server.published().values for server in self.servers])
