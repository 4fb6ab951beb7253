"""A stage's connections: it answers the stage before it, and asks the stage after it.

A forward micro-batch is a request, and its gradient the answer. So both neighbours notice when a stage dies, and can
tell a working stage from one that is gone.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hvd_sparse.pipeline import wire
from hvd_sparse.transport.meeting import Meeting
from link import Caller, Client, Events, LinkError, PartnerLostError, Patience, Request, Server, WireError, wait_until

_FAREWELL = 10.0  # seconds for the stage before to say goodbye
_LAST_WORDS = 2.0  # seconds for neighbours to learn why this stage cannot go on
_IN_FLIGHT = 8


class StageError(PartnerLostError, RuntimeError):
    """A stage of the pipeline cannot go on; the weights of all stages are as before the step."""


class Place(NamedTuple):
    """A stage's place in the pipeline.

    Attributes:
        stage: its number.
        stages: the number of stages.
        ranks: of the stages, in their order.
    """

    stage: int
    stages: int
    ranks: tuple[int, ...]

    @property
    def is_first(self) -> bool:
        """Whether it has no stage before it."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether it has no stage after it."""
        return self.stage == self.stages - 1

    def name(self, stage: int | None = None) -> str:
        """What to call a stage in a message, by default this one."""
        stage = self.stage if stage is None else stage
        return f"stage {stage} (rank {self.ranks[stage]})"


class Neighbours:
    """One stage's connections, for the thread that trains.

    Attributes:
        place: of this stage.
        seconds_waiting: time spent waiting for neighbours.
    """

    def __init__(self, place: Place, meeting: Meeting, subject: str, micro_batches: int):
        """Starts to listen if there is a stage before this one.

        Args:
            place: of this stage.
            meeting: of all ranks.
            subject: what this trainer's stages have in common.
            micro_batches: the largest number in flight.
        """
        self.place, self.seconds_waiting = place, 0.0
        self._changed = threading.Condition()
        self._requests: collections.deque[Request] = collections.deque()
        self._unanswered: list[Request] = []
        self._why, self._failed, self._parted = "", False, False
        addresses = [meeting.addresses[rank] for rank in place.ranks]
        self._server: Server | None = None
        if not place.is_first:
            own, departures = addresses[place.stage], _Departures(self._gone)
            self._server = Server(own, place.stage, subject, meeting.secret, wire.PROTOCOL, self._take, departures)
        self._client: Client | None = None
        if not place.is_last:
            patience = Patience(work=math.inf)
            flying = max(_IN_FLIGHT, micro_batches + 2)
            events = Events("hvd_sparse pipeline")
            caller = Caller(place.stage, subject, meeting.secret, wire.PROTOCOL, patience, False, events, flying)
            self._client = Client(addresses, caller)

    # ---- what the stage does ----

    def require_alive(self) -> None:
        """Raises StageError if a step has failed before: the stages no longer know each other's state."""
        with self._changed:
            if self._failed:
                raise StageError(f"{self._why} (before)")

    def receive(self, kind: str) -> Request:
        """The next request of the stage before, which must be of this kind.

        Raises:
            StageError: if none will come, or another one has come.
        """
        self._wait(lambda: bool(self._requests) or (self._parted and not self._why))
        with self._changed:
            request = self._requests.popleft() if self._requests else None
        if request is None or request.kind != kind:
            got = "a disconnect" if request is None else repr(request.kind)
            raise StageError(
                f"{self.place.name()} expected {kind!r} of {self._before}, got {got}: make the same calls "
                "of fit, evaluate and predict on all stages, with equally many batches."
            )
        return request

    def ask(self, kind: str, payload: Any = b"", **fields: Any) -> concurrent.futures.Future[Any]:
        """Asks the stage after this one; pass the result to `answer_to`."""
        assert self._client is not None
        asked = self._client.ask(self.place.stage + 1, kind, payload, **fields)
        asked.add_done_callback(lambda _: self._notify())
        return asked

    def answer_to(self, asked: concurrent.futures.Future[Any]) -> Any:
        """The answer of the stage after this one.

        Raises:
            StageError: if that stage cannot answer, or is gone.
        """
        self._wait(asked.done)
        try:
            answer = asked.result()
        except LinkError as lost:
            raise StageError(f"{self.place.name(self.place.stage + 1)} was lost: {lost.reason}.") from None
        if answer.kind == "failed":
            raise StageError(answer.fields["why"])
        return answer

    def answer(self, request: Request, kind: str, payload: Any = b"", **fields: Any) -> None:
        """Answers the stage before this one."""
        with self._changed:
            self._unanswered.remove(request)
        request.answer(kind, payload, **fields)

    def fail(self, why: str) -> None:
        """Tells both neighbours why this stage cannot go on, once; it does nothing more after that."""
        with self._changed:
            if self._failed:
                return
            self._failed, self._why = True, self._why or why
            unanswered, self._unanswered = self._unanswered, []
        for request in unanswered:
            request.answer("failed", why=wire.words(why))
        if self._client is not None:
            with contextlib.suppress(LinkError, concurrent.futures.TimeoutError):
                self._client.ask(self.place.stage + 1, "stop", why=wire.words(why)).result(_LAST_WORDS)
        self._wait_for_farewell(_LAST_WORDS if unanswered else 0.0)

    def close(self) -> None:
        """Says goodbye to the stage after this one, once the stage before has done so."""
        if self._server is not None and not self._why:
            self._wait_for_farewell(_FAREWELL)
        if self._client is not None:
            with contextlib.suppress(LinkError, concurrent.futures.TimeoutError):
                self._client.ask(self.place.stage + 1, "part").result(_LAST_WORDS)
        self.abandon()

    def abandon(self) -> None:
        """Ends all connections without saying goodbye."""
        if self._client is not None:
            self._client.close()
        if self._server is not None:
            self._server.close()

    # ---- waiting ----

    @property
    def _before(self) -> str:
        return self.place.name(self.place.stage - 1)

    def _wait(self, is_there: Callable[[], bool]) -> None:
        began = time.monotonic()
        with self._changed:
            wait_until(lambda: is_there() or bool(self._why), self._changed)
            self.seconds_waiting += time.monotonic() - began
            if not is_there():
                raise StageError(self._why)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait_for_farewell(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._parted, seconds)

    # ---- the server's thread ----

    def _take(self, request: Request) -> None:
        if request.asker != self.place.stage - 1:
            raise WireError(f"a request of stage {request.asker}")
        with self._changed:
            if request.kind in ("stop", "part"):
                request.answer("done")
                stopped = f"{self._before} has stopped." if request.kind == "stop" else ""
                self._why = self._why or request.fields.get("why") or stopped
                self._parted = self._parted or request.kind == "part"
            elif self._why:
                request.answer("failed", why=wire.words(self._why))
            else:
                self._requests.append(request)
                self._unanswered.append(request)
            self._changed.notify_all()

    def _gone(self, asker: int) -> None:
        with self._changed:
            if not self._parted:
                self._why = self._why or f"{self._before} was lost."
            self._parted = True
            self._changed.notify_all()


class _Departures(Events):
    """Tells a stage when the connection of the stage before it has ended."""

    def __init__(self, gone: Callable[[int], None]):
        super().__init__("hvd_sparse pipeline")
        self._gone = gone

    def gone(self, asker: int) -> None:
        self._gone(asker)
