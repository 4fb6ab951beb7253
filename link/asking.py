"""Who asks, what is asked, and the promise of an answer."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from link import session
from link.events import Events
from link.forms import Protocol, WireError
from link.session import Greeting


class LinkError(ConnectionError):
    """A server cannot be asked, or its answer does not come.

    Attributes:
        server: its number.
        reason: in words.
    """

    def __init__(self, server: int, reason: str):
        super().__init__(f"Server {server} has not answered: {reason}.")
        self.server, self.reason = server, reason


class Patience(NamedTuple):
    """How long things may take, in seconds.

    Attributes:
        silence: without a sign of life, until a server counts as gone.
        work: until a request counts as lost that a server works on which is alive; by default 12 times `silence`.
        again: until a server that failed is tried again; by default `silence`.
    """

    silence: float = 10.0
    work: float | None = None
    again: float | None = None

    @property
    def arrival(self) -> float:
        """Until a server that was never met counts as gone: processes of a job do not all start at once."""
        return 2 * self.silence

    @property
    def answer(self) -> float:
        """Until a request counts as lost that a server works on which is alive."""
        return 12 * self.silence if self.work is None else self.work

    @property
    def rest(self) -> float:
        """For which a server that failed is left alone."""
        return self.silence if self.again is None else self.again


class Caller(NamedTuple):
    """Who asks, and what all its connections have in common.

    Attributes:
        number: of this process, which servers are told.
        subject: what is asked about, at most 256 bytes; servers of another one refuse.
        secret: of the job.
        protocol: that is spoken.
        patience: how long things may take.
        encrypt: by CURVE.
        events: hears of servers that are lost.
        in_flight: requests that a server has at a time from this process; others wait here.
    """

    number: int
    subject: str
    secret: bytes
    protocol: Protocol
    patience: Patience = Patience()
    encrypt: bool = False
    events: Events = Events()
    in_flight: int = 8

    def greeting(self, server: int) -> Greeting:
        """What it says to a server first."""
        protocol = self.protocol
        return Greeting(protocol.name, protocol.version, server, self.subject, self.number, session.nonce())


class Answer(NamedTuple):
    """What a server has answered; the payload is the memory that it was received in."""

    kind: str
    fields: dict[str, Any]
    payload: memoryview


class Asked:
    """What a server is asked, and the promise of an answer, which is kept in any case."""

    def __init__(self, kind: str, fields: Mapping[str, Any], payload: memoryview, check: Callable[..., Any]):
        """Takes a request of its form, and what makes a result of kind, fields and payload of the answer."""
        self.kind, self.fields, self.payload, self.check = kind, fields, payload, check
        self.answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.answer.set_running_or_notify_cancel()  # so that nobody can cancel what the server works on
        self.sent_at = 0.0

    def take(self, said: dict[str, Any], payload: memoryview) -> None:
        """Keeps the promise.

        Raises:
            WireError: where this is no answer to what was asked.
        """
        fields = {name: value for name, value in said.items() if name not in ("kind", "number")}
        try:
            result = self.check(said["kind"], fields, payload)
        except WireError:
            raise
        except Exception as error:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(result)
