"""One shard that a rank serves: the clients' requests and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd_sparse.servers import wire
from hvd_sparse.servers.messages import Pull
from hvd_sparse.servers.saving import Keeper
from hvd_sparse.servers.shard import Shard
from link import Request


class Hosting:
    """Answers clients from a shard; for one thread at a time.

    A client that has finished says so (`leave`), and is answered once all have, with the final parameters. A client
    whose connection has ended is not waited for. A server that stands still for a client goes on by itself if that
    client's connection ends.

    Attributes:
        shard: the shard that is served.
        keeper: of this shard's part of a checkpoint.
    """

    def __init__(self, shard: Shard, keeper: Keeper, decode: wire.Decode | None = None):
        """Takes the shard, its keeper, and the decoder of coded pushes."""
        self.shard, self.keeper, self._decode = shard, keeper, decode
        self._pending: dict[int, Request] = {}
        self._leaving: dict[int, Request] = {}
        self._still_for: int | None = None

    def handle(self, request: Request) -> None:
        """Handles a request; its answer is sent now, or when the shard has one. MessageError if it does not fit."""
        getattr(self, f"_{request.kind}")(request)

    def gone(self, client: int) -> None:
        """Notes that a client's connection has ended."""
        self._pending.pop(client, None)
        if client == self._still_for:
            self._go_on_by_itself()
        self._give(self.shard.lose_sight_of(client))
        self._tell_leaving()

    def advance(self) -> None:
        """Sends the answers that the shard has by now."""
        self._give(self.shard.advance())

    def move_out(self) -> None:
        """Tells all clients that wait that another rank serves the shard now."""
        for request in [*self._pending.values(), *self._leaving.values()]:
            request.answer("moved")
        self._pending.clear()
        self._leaving.clear()

    def _begin(self, request: Request) -> None:
        self._pending.pop(request.asker, None)
        last = request.fields["push"] if request.fields["again"] else None
        _answer(request, self.shard.begin(request.asker, last))

    def _push(self, request: Request) -> None:
        answers = self.shard.push(request.asker, wire.push_of(request.fields, request.payload, self._decode))
        self._pending[request.asker] = request
        self._give(answers)

    def _publish(self, request: Request) -> None:
        _answer(request, self._published())

    def _pause(self, request: Request) -> None:
        _answer(request, self._published())
        self._give(self.shard.pause(request.asker))

    def _leave(self, request: Request) -> None:
        self._leaving[request.asker] = request
        self._give(self.shard.leave(request.asker))
        self._tell_leaving()

    def _stand_still(self, request: Request) -> None:
        self._still_for = request.asker
        request.answer("numbers", wire.numbers(self.shard.stand_still()))

    def _go_on(self, request: Request) -> None:
        if request.asker != self._still_for:
            request.answer("failed", problem="the connection was lost in the meantime, and the server has moved on")
            return
        self._go_on_by_itself()
        request.answer("done")

    def _go_on_by_itself(self) -> None:
        self._still_for = None
        self._give(self.shard.go_on())

    def _tell_leaving(self) -> None:
        if self.shard.expected:
            return
        for request in self._leaving.values():
            _answer(request, self._published())
        self._leaving.clear()

    def _published(self) -> Pull:
        return Pull(0, self.shard.version, self.shard.pushes, self.shard.published())

    def _give(self, answers: Sequence[tuple[int, Pull]]) -> None:
        for client, pull in answers:
            request = self._pending.pop(client, None)
            if request is not None:  # otherwise it is sent again, and answered then
                _answer(request, pull)


def _answer(request: Any, pull: Pull) -> None:
    request.answer("pull", wire.payload(pull.parameters), **wire.pull_fields(pull))
