"""One server's part of the parameters, without a network: takes pushes, returns answers."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from hvd_sparse.servers.copies import Copies, SharedCopy
from hvd_sparse.servers.gathering import Gathering
from hvd_sparse.servers.messages import Entries, MessageError, Pull, Push
from hvd_sparse.servers.rules import Rule, Standing
from hvd_sparse.servers.state import Standings, State


class Parameters(Protocol):
    """A shard of the parameters, `size` elements, and what applies gradients to it."""

    size: int

    def vector(self) -> tf.Tensor:
        """The parameters, [size] float32."""

    def gathering(self) -> Gathering:
        """Creates the sum that gradients are gathered in."""

    def apply(self, gradient: Any, rate: float) -> None:
        """Makes one update with a mean of what `gathering` has summed, and a learning rate."""

    def state(self) -> dict[str, np.ndarray]:
        """All state to be saved: vectors [size], and numbers []."""

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores what `state` returned; ValueError if it does not fit."""


@dataclasses.dataclass
class _Client:
    """What a server knows of a client: its last push, the answer to it, and the version that it computes with."""

    version: int
    number: int = 0
    answer: Pull | None = None


class Shard:
    """A server of a part of the parameters; for one thread at a time.

    Each client has at most one push that waits for an answer. An answer is kept until the client's next push shows that
    it has arrived: a push that is sent again gets the same answer again, and is not applied twice.

    Args:
        parameters: the shard.
        copies: what clients were last sent.
        rule: which pushes are applied when.
        ranks: number of clients that take part; a rule that waits for all waits for these.
    """

    def __init__(self, parameters: Parameters, copies: Copies, rule: Rule, ranks: int):
        self._parameters, self._copies, self._rule = parameters, copies, rule
        self._ranks, self._absent, self._left = ranks, set(range(ranks)), set[int]()
        self._restored: dict[int, int] = {}  # the last push of each client, if another server had the shard before
        self._clients: dict[int, _Client] = {}
        self._away: set[int] = set()
        self._paused: set[int] = set()
        self._waiting: dict[int, Push] = {}  # in the order of arrival
        self._gathered = parameters.gathering()
        self._stands_still = False
        self._limit: int | None = None  # the version limit, from what a replica may lack
        self._until: float | None = None  # the end of the lease, by time.monotonic()
        self._due: int | None = None  # the version at which a replica is due
        self.is_due = threading.Event()
        self.version = self.pushes = 0
        self.staleness: collections.Counter[int] = collections.Counter()  # of applied pushes, in updates

    @property
    def expected(self) -> set[int]:
        """The clients that may push, now or once they have begun: all except those that have left or are away."""
        return (self._absent | set(self._clients)) - self._away

    @property
    def queue(self) -> int:
        """The number of pushes that wait to be applied."""
        return len(self._waiting)

    def begin(self, client: int, last: int | None = None) -> Pull:
        """All of the shard, for a client that begins, or begins again; the client's waiting push is dropped.

        Args:
            client: its rank.
            last: its last push that was answered, if it continues; None if it is new.

        Returns:
            The answer, whose number is that of its last push that was applied.
        """
        number = 0 if last is None else max(last, self.standings().numbers[client])
        self._absent.discard(client)
        self._is_here(client)
        self._waiting.pop(client, None)
        self._clients[client] = _Client(self.version, number)
        return Pull(number, self.version, self.pushes, self._copies.begin(client, self._parameters.vector()))

    def push(self, client: int, push: Push) -> list[tuple[int, Pull]]:
        """Takes a push.

        Args:
            client: its rank.
            push: as received.

        Returns:
            The answers that can be given now, and to whom.

        Raises:
            MessageError: if the client has not begun, or the push is out of turn or does not fit; nothing has changed.
        """
        known = self._clients.get(client)
        if known is None:
            raise MessageError(f"a push of rank {client}, which has not begun")
        self._is_here(client)
        if push.number == known.number and push.number > 0:
            return [] if known.answer is None else [(client, known.answer)]
        if push.number != known.number + 1:
            raise MessageError(f"push {push.number} of rank {client}, where {known.number + 1} was expected")
        push.gradient.checked(self._parameters.size)
        known.number, known.answer = push.number, None
        self._waiting[client] = push
        return self.advance()

    def leave(self, client: int) -> list[tuple[int, Pull]]:
        """Stops waiting for a client that has finished; returns what `push` does."""
        self._is_here(client)
        self._absent.discard(client)
        self._left.add(client)
        self._clients.pop(client, None)
        self._waiting.pop(client, None)
        self._copies.forget(client)
        return self.advance()

    def pause(self, client: int) -> list[tuple[int, Pull]]:
        """Stops waiting for a client that does not compute for a while, until it pushes; returns what `push` does.

        The gradient of that push may be older than a bound allows.
        """
        self._paused.add(client)
        return self.advance()

    def lose_sight_of(self, client: int) -> list[tuple[int, Pull]]:
        """Stops waiting for a client whose connection has ended, until it is heard of again; returns what `push` does.

        Its state is kept, so that it can continue where it was if only the connection was lost.
        """
        self._away.add(client)
        return self.advance()

    def stand_still(self) -> list[int]:
        """Applies nothing until `go_on`, and lets everything wait; returns the last applied push of each client."""
        self._stands_still = True
        return self.standings().numbers

    def go_on(self) -> list[tuple[int, Pull]]:
        """Applies pushes again; returns what `push` does."""
        self._stands_still = False
        return self.advance()

    def insure(self, limit: int | None, until: float | None, due: int | None = None) -> None:
        """Sets the limits within which the server goes on; None sets none.

        Args:
            limit: the version at which it waits for a new limit.
            until: when its lease ends, by time.monotonic().
            due: the version at which it sets `is_due`.
        """
        self._limit, self._until, self._due = limit, until, due

    def standings(self) -> Standings:
        """The state of the clients."""
        known = self._clients
        applied = {client: each.number - (client in self._waiting) for client, each in known.items()}
        ranks = range(self._ranks)
        return Standings(
            [applied.get(client, self._restored.get(client, 0)) for client in ranks],
            [int(client in self._left) for client in ranks],
            [int(client in self._paused) for client in ranks],
        )

    def state(self) -> State:
        """The state to be saved; copies, which later updates do not change."""
        gathered = self._gathered
        return State(self._parameters.state(), gathered.values(), gathered.count, self.version, self.pushes)

    def restore(self, state: State, standings: Standings | None = None) -> None:
        """Restores what `state` returned, before any client begins; ValueError if it does not fit.

        Args:
            state: of this shard.
            standings: of its clients, if they continue with their pushes; all of them have to begin again.
        """
        self._parameters.restore(state.arrays)
        self._gathered.restore(state.gathered, state.gathered_pushes)
        self.version, self.pushes = state.version, state.pushes
        if standings is not None:
            self._restored = dict(enumerate(standings.numbers))
            self._left = {client for client, has_left in enumerate(standings.left) if has_left}
            self._paused = {client for client, paused in enumerate(standings.paused) if paused}
            self._absent -= self._left

    def published(self) -> Entries:
        """All of the current parameters."""
        return Entries(self._parameters.vector().numpy())

    def _is_here(self, client: int) -> None:
        self._away.discard(client)
        self._paused.discard(client)

    def advance(self) -> list[tuple[int, Pull]]:
        """Applies what may be applied, and returns what `push` does; all clients answered are sent the same version."""
        served: list[int] = []
        while self._may_apply() and (group := self._rule.next(self._standing(served))):
            self._apply([(client, self._waiting.pop(client)) for client in group])
            served += group
        if served and isinstance(self._copies, SharedCopy):
            self._copies.choose(self._parameters.vector())
        return [(client, self._answer(client)) for client in served]

    def _may_apply(self) -> bool:
        if self._until is not None and time.monotonic() > self._until:
            return False
        return not self._stands_still and (self._limit is None or self.version < self._limit)

    def _standing(self, served: list[int]) -> Standing:
        """The state of the clients; those served in this turn are about to get the newest version."""
        idle = {*self._waiting, *served, *self._away, *self._paused}
        lags = {client: self.version - each.version for client, each in self._clients.items() if client not in idle}
        return Standing(list(self._waiting), lags, self._absent - self._away - self._paused, self._gathered.count)

    def _apply(self, group: list[tuple[int, Push]]) -> None:
        for client, push in group:
            self._gathered.add(push.gradient)
            self.staleness[self.version - self._clients[client].version] += 1
        self.pushes += len(group)
        if not self._rule.makes_update(self._gathered.count):
            return
        self._parameters.apply(self._gathered.mean(), group[-1][1].rate)
        self.version += 1
        if self._due is not None and self.version >= self._due:
            self.is_due.set()
        self._gathered.clear()

    def _answer(self, client: int) -> Pull:
        known = self._clients[client]
        known.version = self.version
        parameters = self._copies.next(client, self._parameters.vector())
        known.answer = Pull(known.number, self.version, self.pushes, parameters)
        return known.answer
