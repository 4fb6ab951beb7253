"""A shard behind the link: requests in, answers out, on the thread of the link's server."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from hvd_sparse.servers import wire
from hvd_sparse.servers.meeting import Presence
from hvd_sparse.servers.messages import Entries, MessageError, Pull
from hvd_sparse.servers.saving import Keeper
from hvd_sparse.servers.shard import Shard
from link import Request, WireError


class Service:
    """Answers the requests of clients out of a shard.

    A client that has ended says so (`leave`), and is answered once all have: with the parameters as they then stay. It
    says goodbye (`part`) when all servers have told it theirs. Who has lost its connection is not waited for.

    For a checkpoint a client has all servers stand still, has all ranks keep what they have, lets servers go on, and
    has all ranks write. A server goes on by itself where that client's connection ends.

    Attributes:
        shard: that is served.
        keeper: of what this rank has.
        presence: of the clients that have not parted, and are not gone.
    """

    def __init__(self, shard: Shard, keeper: Keeper, ranks: int, decode: wire.Decode | None = None):
        """Takes what is served, what keeps it, how many clients there are, and what gives the values of codes."""
        self.shard, self.keeper, self._ranks, self._decode = shard, keeper, ranks, decode
        self._still_for: int | None = None
        self._pending: dict[int, Request] = {}
        self._leaving: dict[int, Request] = {}
        self._told: dict[int, np.ndarray] = {}
        self.presence = Presence(ranks)

    def handle(self, request: Request) -> None:
        """Takes a request; its answer is given now, or when the shard has one. WireError where it does not fit."""
        self.presence.shows(request.asker)
        try:
            getattr(self, f"_{request.kind}")(request)
        except MessageError as complaint:
            raise WireError(str(complaint)) from None

    def gone(self, client: int) -> None:
        """A client's connection has ended."""
        self._pending.pop(client, None)
        if client == self._still_for:
            self._go_on_by_itself()
        self._give(self.shard.lose_sight_of(client))
        self._end(client)

    def _begin(self, request: Request) -> None:
        self._pending.pop(request.asker, None)
        _answer(request, self.shard.begin(request.asker))

    def _push(self, request: Request) -> None:
        answers = self.shard.push(request.asker, wire.push_of(request.fields, request.payload, self._decode))
        self._pending[request.asker] = request
        self._give(answers)

    def _publish(self, request: Request) -> None:
        _answer(request, self._published())

    def _pause(self, request: Request) -> None:
        _answer(request, self._published())
        self._give(self.shard.pause(request.asker))

    def _average(self, request: Request) -> None:
        told = wire.entries_of(request.fields, request.payload)
        if told.indices is not None or any(len(other) != len(told.values) for other in self._told.values()):
            raise MessageError(f"{len(told.values)} values that are not trained, where others have told other ones")
        self._told[request.asker] = told.values
        told_by_all = np.stack([self._told[client] for client in sorted(self._told)])
        mean = told_by_all.mean(0, np.float64)
        _answer(request, Pull(0, self.shard.version, self.shard.pushes, Entries(np.asarray(mean, np.float32))))

    def _leave(self, request: Request) -> None:
        self._leaving[request.asker] = request
        self._give(self.shard.leave(request.asker))
        self._tell_leaving()

    def _part(self, request: Request) -> None:
        request.answer("done")
        self._end(request.asker)

    def _stand_still(self, request: Request) -> None:
        self._still_for = request.asker
        applied = self.shard.stand_still()
        last = [applied.get(client, 0) for client in range(self._ranks)]
        request.answer("numbers", wire.numbers(last))

    def _keep(self, request: Request) -> None:
        applied = wire.numbers_of(request.payload, self._ranks)

        def keep() -> None:
            self.keeper.keep(applied)
            request.answer("done")

        _aside(request, keep)

    def _go_on(self, request: Request) -> None:
        if request.asker != self._still_for:
            request.answer("failed", problem="the connection was lost meanwhile, and the server has gone on")
            return
        self._go_on_by_itself()
        request.answer("done")

    def _go_on_by_itself(self) -> None:
        self._still_for = None
        self._give(self.shard.go_on())

    def _write(self, request: Request) -> None:
        number = request.fields["checkpoint"]
        _aside(request, lambda: request.answer("written", sha256=self.keeper.write_kept(number)))

    def _end(self, client: int) -> None:
        self.presence.ends(client)
        self._tell_leaving()

    def _tell_leaving(self) -> None:
        if self.shard.expected:
            return
        for request in self._leaving.values():
            _answer(request, self._published())
        self._leaving.clear()

    def _published(self) -> Pull:
        return Pull(0, self.shard.version, self.shard.pushes, self.shard.published())

    def _give(self, answers: list[tuple[int, Pull]]) -> None:
        for client, pull in answers:
            request = self._pending.pop(client, None)
            if request is not None:  # else it comes again, and is answered then
                _answer(request, pull)


def _answer(request: Request, pull: Pull) -> None:
    request.answer("pull", wire.payload(pull.parameters), **wire.pull_fields(pull))


def _aside(request: Request, work: Callable[[], None]) -> None:
    """Does on a thread of its own what takes long; tells the asker where it fails."""

    def run() -> None:
        try:
            work()
        except Exception as error:
            request.answer("failed", problem=wire.problem(error))

    threading.Thread(target=run, name="servers-keeper", daemon=True).start()
