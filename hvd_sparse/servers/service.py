"""A shard behind the link: requests in, answers out, on the thread of the link's server."""

from __future__ import annotations

import threading

from hvd_sparse.servers import wire
from hvd_sparse.servers.messages import MessageError, Pull
from hvd_sparse.servers.shard import Shard
from link import Request, WireError


class Service:
    """Answers the requests of clients out of a shard."""

    def __init__(self, shard: Shard):
        self._shard = shard
        self._pending: dict[int, Request] = {}
        self.ended = threading.Event()  # when all clients have left

    def handle(self, request: Request) -> None:
        """Takes a request; its answer is given now, or when the shard has one. WireError where it does not fit."""
        try:
            getattr(self, f"_{request.kind}")(request)
        except MessageError as complaint:
            raise WireError(str(complaint)) from None

    def gone(self, client: int) -> None:
        """A client's connection has ended without a word; the others go on."""
        if client in self._shard.clients:
            self._drop(client)

    def _begin(self, request: Request) -> None:
        self._pending.pop(request.asker, None)
        _answer(request, self._shard.begin(request.asker))

    def _push(self, request: Request) -> None:
        answers = self._shard.push(request.asker, wire.push_of(request.fields, request.payload))
        self._pending[request.asker] = request
        self._give(answers)

    def _publish(self, request: Request) -> None:
        shard = self._shard
        _answer(request, Pull(0, shard.version, shard.pushes, shard.published()))

    def _leave(self, request: Request) -> None:
        request.answer("left")
        self._drop(request.asker)

    def _drop(self, client: int) -> None:
        self._pending.pop(client, None)
        self._give(self._shard.leave(client))
        if not self._shard.clients:
            self.ended.set()

    def _give(self, answers: list[tuple[int, Pull]]) -> None:
        for client, pull in answers:
            request = self._pending.pop(client, None)
            if request is not None:  # else it comes again, and is answered then
                _answer(request, pull)


def _answer(request: Request, pull: Pull) -> None:
    request.answer("pull", wire.payload(pull.parameters), **wire.pull_fields(pull))
