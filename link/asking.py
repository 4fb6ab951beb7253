"""The caller, a request, and the future of its answer."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from link import session
from link.events import Events
from link.forms import Protocol, WireError
from link.session import Greeting


class PartnerLostError(Exception):
    """Another process of the job is gone, or cannot go on; each subclass says which and why."""


class LinkError(PartnerLostError, ConnectionError):
    """A server cannot be asked, or its answer does not come.

    Attributes:
        server: its number.
        reason: the reason as text.
    """

    def __init__(self, server: int, reason: str):
        super().__init__(f"Server {server} has not answered: {reason}.")
        self.server, self.reason = server, reason


class Patience(NamedTuple):
    """How long things may take, in seconds.

    Attributes:
        silence: without a sign of life, after which a server counts as gone; while the asking process was stopped, or
            had no processor, it could not listen, and that time does not count.
        work: after which a request counts as lost although its server is alive and works on it; by default 12 times
            `silence`.
        again: before a failed server is tried again; by default `silence`.
    """

    silence: float = 10.0
    work: float | None = None
    again: float | None = None

    @property
    def arrival(self) -> float:
        """Before a server that was never reached counts as gone: processes of a job do not all start at once."""
        return 2 * self.silence

    @property
    def answer(self) -> float:
        """Before a request counts as lost although its server is alive and works on it."""
        return 12 * self.silence if self.work is None else self.work

    @property
    def rest(self) -> float:
        """For which a failed server is left alone."""
        return self.silence if self.again is None else self.again


class Caller(NamedTuple):
    """The asking process, and what all its connections have in common.

    Attributes:
        number: of this process, which servers are told.
        subject: what the requests are about, at most 256 bytes; servers with another subject refuse.
        secret: of the job.
        protocol: the protocol to use.
        patience: how long things may take.
        encrypt: whether to encrypt, by CURVE.
        events: notified of lost servers.
        in_flight: number of requests that a server has at a time from this process; others wait here.
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
        """The first message to a server."""
        protocol = self.protocol
        return Greeting(protocol.name, protocol.version, server, self.subject, self.number, session.nonce())


class Answer(NamedTuple):
    """A server's answer; the payload is the memory that it was received in."""

    kind: str
    fields: dict[str, Any]
    payload: memoryview


class Asked:
    """A request, and the future of its answer, which always completes."""

    def __init__(self, kind: str, fields: Mapping[str, Any], payload: memoryview, check: Callable[..., Any]):
        """Takes a request that fits its form, and what makes a result from the answer's kind, fields and payload."""
        self.kind, self.fields, self.payload, self.check = kind, fields, payload, check
        self.answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.answer.set_running_or_notify_cancel()  # so that requests on which the server works cannot be cancelled
        self.sent_at = 0.0

    def take(self, said: dict[str, Any], payload: memoryview) -> None:
        """Completes the future.

        Raises:
            WireError: if this is not an answer to the request.
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
