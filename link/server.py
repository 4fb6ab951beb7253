"""The answering side: one thread that verifies, checks and sends, and asks its user for answers."""

from __future__ import annotations

import collections
import errno
import hmac
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import zmq

from link import addresses, forms, session, sockets
from link.events import Events, Refusal
from link.forms import Protocol, WireError
from link.session import Channel, Greeting, Keys, RefusedError, Session
from link.strangers import Strangers

_MOST_CONNECTIONS = 4096  # known ones and those in the handshake; the oldest is forgotten first
_AT_A_TIME = 32  # messages that are taken before anything else is done
_SIGN_OF_LIFE = 0.5  # seconds between two messages to those who wait for an answer
_log = logging.getLogger(__name__)


class _Guest(NamedTuple):
    """A connection in the handshake."""

    asker: int
    keys: Keys


class Request:
    """A request, to be answered once, now or later, by any thread; until then the asker gets signs of life.

    Attributes:
        asker: its number, confirmed by the proof that it knows the secret.
        kind: of the request.
        fields: by name, as in their form.
        payload: the memory that it was received in.
    """

    def __init__(self, server: Server, identity: bytes, known: Session, said: dict[str, Any], payload: memoryview):
        """Takes the server, the connection that the request came by, and its content."""
        self._server, self._identity, self._known = server, identity, known
        self._number, self._answered = said["number"], False
        self.asker, self.kind, self.payload = known.asker, said["kind"], payload
        self.fields = {name: value for name, value in said.items() if name not in ("kind", "number")}

    def answer(self, kind: str, payload: Any = b"", **fields: Any) -> None:
        """Answers the request; does nothing if the asker is gone.

        Args:
            kind: of the answer.
            payload: bytes, or contiguous memory such as an array; it is not copied, and must never be changed
            afterwards.
            **fields: of the kind's form.

        Raises:
            ValueError: if it is not an answer of the protocol.
            RuntimeError: if it was already answered.
        """
        if self._answered:
            raise RuntimeError(f"Expected one answer to each request, got {kind!r} to one that was answered before.")
        protocol = self._server.protocol
        body = forms.flat(payload, protocol.answer_bytes)
        forms.require(protocol.answers, kind, fields)
        self._answered = True
        self._server.post(self, forms.pack(kind, number=self._number, **fields), body)

    @property
    def is_wanted(self) -> bool:
        """Whether the asker is still there, as far as the server knows."""
        return self._server.knows(self._identity, self._known)

    def connection(self) -> tuple[bytes, Session]:
        """The connection that the request came by."""
        return self._identity, self._known


class Server:
    """Answers the processes of a job until it is closed.

    Attributes:
        protocol: that it uses.
    """

    def __init__(
        self,
        bind: str,
        number: int,
        subject: str,
        secret: bytes,
        protocol: Protocol,
        handle: Callable[[Request], Any],
        events: Events,
        encrypt: bool = False,
        name: str = "link-server",
    ):
        """Binds to exactly this address and starts to serve.

        Args:
            bind: host:port.
            number: of this server among those of the job.
            subject: what requests are about: callers with another subject are refused.
            secret: of the job.
            protocol: the protocol to use.
            handle: called by the server's thread for each request, so it must be brief; slow work belongs on other
                threads. If it raises a `WireError`, the connection ends, as with a malformed message; so it does with
                any other exception, which is logged.
            events: notified of refusals.
            encrypt: serve by CURVE only.
            name: of the thread.

        Raises:
            ValueError: if bind is not an address, or the protocol exceeds what a link can do.
            OSError: if the address cannot be bound.
        """
        protocol.check()
        self._number, self._subject, self._secret, self.protocol = number, subject, secret, protocol
        self._handle, self._events, self._process = handle, events, os.getpid()
        self._forms = forms.numbered(protocol.requests)
        self._guests: collections.OrderedDict[bytes, _Guest] = collections.OrderedDict()
        self._sessions: collections.OrderedDict[bytes, Session] = collections.OrderedDict()
        self._unanswered: set[Request] = set()
        self._told_at = 0.0
        self._ended: list[bytes] = []  # identities of ended connections; their last messages may be queued
        self._outbox: collections.deque[tuple[Request, bytes, memoryview]] = collections.deque()
        self._closing, self._lock = False, threading.Lock()
        self._context, self._alarm = zmq.Context(), sockets.Alarm()
        self._socket = self._context.socket(zmq.ROUTER)
        self._strangers = Strangers(self._socket)
        try:
            self._bind(bind, encrypt)
        except BaseException:
            self._context.destroy(linger=0)
            self._alarm.close()
            raise
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops; callers that wait for an answer notice by themselves. Calling it again does nothing."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._alarm.ring()
        self._thread.join()
        self._alarm.close()

    def post(self, request: Request, header: bytes, payload: memoryview) -> None:
        """Sends a request's answer, which fits its form; only for `Request`."""
        if threading.current_thread() is self._thread:
            self._send_answer(request, header, payload)
            return
        with self._lock:
            if not self._closing:
                self._outbox.append((request, header, payload))
                self._alarm.ring()

    def knows(self, identity: bytes, known: Session) -> bool:
        """Whether a connection still exists; only for `Request`."""
        return self._sessions.get(identity) is known

    # ---- the thread ----

    def _bind(self, bind: str, encrypt: bool) -> None:
        sockets.prepare(self._socket, max(forms.HEADER_BYTES, self.protocol.request_bytes))
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if encrypt:
            self._socket.curve_server = True
            keys = session.curve_keys(self._secret, self.protocol.name)
            self._socket.curve_publickey, self._socket.curve_secretkey = keys
        try:
            self._socket.bind(addresses.endpoint(bind))
        except (OSError, zmq.ZMQError) as error:
            raise OSError(
                error.errno,
                f"expected an address of this machine and a port that is free, got {bind} ({error})",
            ) from error

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._alarm.fileno(), zmq.POLLIN)
        poller.register(self._strangers.monitor, zmq.POLLIN)
        try:
            while not self._closing:
                poller.poll(self._timeout())
                self._alarm.quiet()
                self._ended += self._strangers.look()
                if self._receive_some():
                    self._forget_ended()
                while self._outbox:
                    self._send_answer(*self._outbox.popleft())
                self._give_signs_of_life()
        finally:
            self._context.destroy(linger=0)

    def _timeout(self) -> int | None:
        """Milliseconds until something must be done without a message."""
        if self._strangers.has_news:
            return 0
        times = [_SIGN_OF_LIFE] if self._unanswered else []
        left = self._strangers.seconds_left()
        if left is not None:
            times.append(left)
        return 1 + int(1000 * min(times)) if times else None

    def _receive_some(self) -> bool:
        """Takes messages; returns whether there are no more."""
        for _ in range(_AT_A_TIME):
            try:
                identity, *received = self._socket.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return True
            try:
                self._take(identity.bytes, [frame.buffer for frame in received])
            except (WireError, RefusedError) as complaint:
                self._refuse(identity.bytes, Refusal("message", str(complaint)))
            if identity.bytes in self._sessions:
                self._strangers.know(identity)
        return False

    def _forget_ended(self) -> None:
        for identity in self._ended:
            self._guests.pop(identity, None)
            self._forget(identity)
        self._ended.clear()

    def _forget(self, identity: bytes) -> None:
        """Ends a connection's session, if it has one."""
        known = self._sessions.pop(identity, None)
        if known is not None and all(each.asker != known.asker for each in self._sessions.values()):
            try:
                self._events.gone(known.asker)
            except Exception:
                _log.exception("The departure of process %d could not be handled.", known.asker)

    def _take(self, identity: bytes, frames: Sequence[memoryview]) -> None:
        if len(frames) == 1:
            self._greet(identity, forms.unpack(frames[0], forms.OF_CLIENTS))
            return
        known = self._sessions.get(identity)
        if known is None:
            self._refuse(identity, Refusal("session", "a request before the handshake"))
            return
        sizes = [len(frame) for frame in frames]
        if len(frames) != 3 or sizes[0] > forms.HEADER_BYTES or sizes[2] != forms.TAG:
            raise WireError(f"a message of {len(frames)} frames of {sizes[:4]} bytes")
        self._sessions.move_to_end(identity)
        known.receiving.check(*frames)
        said = forms.unpack(frames[0], self._forms)
        if sizes[1] > self.protocol.request_bytes:
            raise WireError(f"a request of {sizes[1]} bytes, at most {self.protocol.request_bytes} are allowed")
        self._hand_over(identity, Request(self, identity, known, said, frames[1]))

    # ---- the handshake ----

    def _greet(self, identity: bytes, said: dict[str, Any]) -> None:
        if said.pop("kind") == "proof":
            self._welcome(identity, said["proof"])
            return
        self._forget(identity)
        greeting = Greeting(**said)
        refusal = self._objection(greeting)
        if refusal is not None:
            self._refuse(identity, refusal)
        elif len(greeting.nonce) != forms.NONCE:
            raise WireError(f"a nonce of {len(greeting.nonce)} bytes")
        else:
            challenge = session.nonce()
            self._guests[identity] = _Guest(greeting.asker, session.derive(self._secret, greeting, challenge))
            self._guests.move_to_end(identity)
            if len(self._guests) > _MOST_CONNECTIONS:
                self._guests.popitem(last=False)
            self._send(identity, [forms.pack("challenge", nonce=challenge)])

    def _objection(self, greeting: Greeting) -> Refusal | None:
        """The reason to refuse this greeting, before the asker could prove anything."""
        own = self.protocol
        if greeting.protocol != own.name:
            return Refusal("protocol", "a peer that speaks another protocol", greeting)
        if greeting.version != own.version:
            return Refusal("version", f"a peer of version {greeting.version}, but this is {own.version}", greeting)
        if greeting.server != self._number:
            what = f"a peer that expected server {greeting.server}, but this is {self._number}"
            return Refusal("server", what, greeting)
        if greeting.subject != self._subject:
            return Refusal("subject", f"process {greeting.asker}, which asks for another subject", greeting)
        return None

    def _welcome(self, identity: bytes, proof: bytes) -> None:
        guest = self._guests.pop(identity, None)
        if guest is None:
            self._refuse(identity, Refusal("session", "a proof that was not asked for"))
        elif not hmac.compare_digest(proof, guest.keys.asker_proof):
            self._refuse(identity, Refusal("secret", "a peer that does not know this job's secret"))
        else:
            channels = Channel(guest.keys.to_asker), Channel(guest.keys.to_server)
            self._sessions[identity] = Session(guest.asker, *channels)
            if len(self._sessions) > _MOST_CONNECTIONS:
                self._forget(next(iter(self._sessions)))
            self._send(identity, [forms.pack("welcome", proof=guest.keys.server_proof)])

    def _refuse(self, identity: bytes, refusal: Refusal) -> None:
        """Sends the other side a one-word reason, and notifies the user."""
        self._guests.pop(identity, None)
        self._forget(identity)
        self._events.refused(refusal)
        self._send(identity, [forms.pack("refuse", reason=refusal.reason)])

    # ---- requests ----

    def _hand_over(self, identity: bytes, request: Request) -> None:
        if not self._unanswered:
            self._told_at = time.monotonic()
        self._unanswered.add(request)
        try:
            self._handle(request)
        except WireError:
            self._unanswered.discard(request)
            raise
        except Exception:
            self._unanswered.discard(request)
            _log.exception("A request %r of process %d could not be handled.", request.kind, request.asker)
            self._refuse(identity, Refusal("fault", f"process {request.asker}, as its request could not be handled"))

    def _send_answer(self, request: Request, header: bytes, payload: memoryview) -> None:
        self._unanswered.discard(request)
        identity, known = request.connection()
        if self.knows(identity, known):
            self._send_known(identity, known, header, payload)

    def _give_signs_of_life(self) -> None:
        if not self._unanswered or time.monotonic() - self._told_at < _SIGN_OF_LIFE:
            return
        self._told_at = time.monotonic()
        for identity, known in {request.connection() for request in self._unanswered}:
            if self.knows(identity, known):
                self._send_known(identity, known, forms.pack("wait"), memoryview(b""))

    def _send_known(self, identity: bytes, known: Session, header: bytes, payload: memoryview) -> None:
        if not self._send(identity, [header, payload, known.sending.tag(header, payload)]):
            self._forget(identity)

    def _send(self, identity: bytes, frames: Sequence[Any]) -> bool:
        """Sends without waiting; False if the other side is gone, or takes nothing."""
        try:
            self._socket.send_multipart([identity, *frames], zmq.DONTWAIT, copy=False)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, errno.EHOSTUNREACH):
                return False
            raise
        return True
