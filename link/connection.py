"""An asking process's connection to one server, and its states: see `State`.

    ABSENT -> GREETING -> READY -> RESTING -> KNOCKING -> READY or RESTING ...

A connection belongs to the client's thread; others only use `is_left_alone`, `reason` and `complain`.
"""

from __future__ import annotations

import collections
import enum
import hmac
import time
from collections.abc import Sequence
from typing import Any

import zmq
import zmq.utils.monitor

from link import addresses, forms, session, sockets
from link.asking import Asked, Caller, LinkError
from link.forms import WireError
from link.session import Channel, Greeting, Keys, RefusedError, Session

_AGAIN = 0.2  # seconds between two attempts to reach a server that has not started yet
_LOST = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


class State(enum.Enum):
    """The state of a connection."""

    ABSENT = "never met, and nothing sent"
    GREETING = "connecting, or in the handshake"
    READY = "in use"
    RESTING = "failed, and left alone for a while"
    KNOCKING = "failed, and in the handshake again; nothing is asked of it before it answers"


class Connection:
    """A connection to one server."""

    def __init__(self, context: zmq.Context, caller: Caller, server: int, place: str):
        """Takes the server's number and address, host:port; connects at the first request."""
        self._context, self._caller, self._server, self._place = context, caller, server, place
        self._forms = {**forms.numbered(caller.protocol.answers), **forms.SIGN_OF_LIFE}
        self._socket: zmq.Socket | None = None
        self._monitor: zmq.Socket | None = None
        self._keys: Keys | None = None
        self._session: Session | None = None
        self._greeting: Greeting | None = None
        self._waiting: collections.deque[Asked] = collections.deque()
        self._asked: dict[int, Asked] = {}
        self._number = 0
        self._state, self._began, self._heard, self._again = State.ABSENT, 0.0, 0.0, 0.0
        self._met = self._warned = False
        self.reason = ""  # of the last failure

    @property
    def is_left_alone(self) -> bool:
        """Whether the server has failed, and has not answered again yet."""
        return self._state in (State.RESTING, State.KNOCKING)

    @property
    def needs_clock(self) -> bool:
        """Whether something must be given up, or tried again, at a certain time."""
        return self._state not in (State.ABSENT, State.READY) or bool(self._asked)

    def sockets(self) -> list[zmq.Socket]:
        """The sockets to poll."""
        return [each for each in (self._socket, self._monitor) if each is not None]

    def ask(self, request: Asked) -> None:
        """Sends a request, or keeps it until it can be sent."""
        if self.is_left_alone:
            request.answer.set_exception(LinkError(self._server, self.reason))
            return
        self._waiting.append(request)
        if self._state is State.ABSENT:
            self._begin_with(State.GREETING)
        else:
            self._send_waiting()

    def complain(self) -> None:
        """Reports that the server is left alone, once each time; called when somebody wants something of it."""
        if not self._warned:
            self._warned = True
            patience = self._caller.patience
            self._caller.events.left_alone(self._server, self._place, self.reason, patience.rest)

    def take_all(self) -> None:
        """Processes what has arrived; anything invalid ends the connection."""
        try:
            while self._socket is not None and self._take_one():
                pass
            self._look_at_connection()
        except (WireError, RefusedError) as complaint:
            self._fail(f"it sent {complaint}")

    def look_at_clock(self) -> None:
        """Gives up what takes too long, and retries what is due."""
        now, patience = time.monotonic(), self._caller.patience
        if self._state is State.RESTING and now >= self._again:
            self._begin_with(State.KNOCKING)
        elif self._state in (State.GREETING, State.KNOCKING):
            if now - self._began > (patience.silence if self._met else patience.arrival):
                self._fail(f"it does not answer{self._hint()}")
            elif self._socket is None and now >= self._again:
                self._connect()
        elif self._state is State.READY and self._asked:
            if now - max(self._heard, self._oldest) > patience.silence:
                self._fail(f"nothing came from it for {patience.silence:g} s")
            elif now - self._oldest > patience.answer:
                self._fail(f"a request was not answered in {patience.answer:g} s")

    def did_not_listen(self, seconds: float) -> None:
        """Leaves seconds in which this process could not listen out of what counts as the server's silence."""
        now = time.monotonic()
        self._began = min(now, self._began + seconds)
        self._heard = min(now, max(self._heard, self._oldest) + seconds)

    @property
    def _oldest(self) -> float:
        """When the oldest request without an answer was sent."""
        return min((request.sent_at for request in self._asked.values()), default=0.0)

    def close(self) -> None:
        """Gives up all requests and closes the connection."""
        self._disconnect()
        self._give_up_all("this process has closed its client")

    # ---- the connection ----

    def _begin_with(self, state: State) -> None:
        self._state, self._began = state, time.monotonic()
        self._connect()

    def _connect(self) -> None:
        try:
            self._open()
        except (OSError, zmq.ZMQError) as error:  # such as an unknown name
            self._lost(str(error))
            return
        self._greeting = self._caller.greeting(self._server)
        self._send([forms.pack("hello", **self._greeting._asdict())])

    def _open(self) -> None:
        caller = self._caller
        self._socket = socket = self._context.socket(zmq.DEALER)
        sockets.prepare(socket, max(forms.HEADER_BYTES, caller.protocol.answer_bytes))
        socket.setsockopt(zmq.RECONNECT_IVL, -1)  # a new connection is a new session
        if caller.encrypt:
            socket.curve_serverkey, _ = session.curve_keys(caller.secret, caller.protocol.name)
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        self._monitor = socket.get_monitor_socket(_LOST)
        socket.connect(addresses.endpoint(self._place))

    def _look_at_connection(self) -> None:
        while self._monitor is not None and self._monitor.poll(0):
            zmq.utils.monitor.recv_monitor_message(self._monitor)
            self._lost(f"the connection was refused or has ended{self._hint()}")

    def _hint(self) -> str:
        """CURVE tells neither side why it fails: a connection ends, or nothing arrives while another attempt runs."""
        return " (with CURVE, also where the secrets differ)" if self._caller.encrypt else ""

    def _lost(self, reason: str) -> None:
        """Tries again if the server was never reached, and may be about to start; fails otherwise."""
        if self._state is State.GREETING and not self._met:
            self._disconnect()
            self._again = time.monotonic() + _AGAIN
            if self._again - self._began < self._caller.patience.arrival:
                return
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        self._disconnect()
        self.reason = reason
        if self._state is not State.KNOCKING:
            self._caller.events.lost(self._server, reason)
        self._state, self._again = State.RESTING, time.monotonic() + self._caller.patience.rest
        self._met = True  # no longer waited for as one that is about to start
        if self._asked or self._waiting:
            self.complain()
        self._give_up_all(reason)

    def _give_up_all(self, reason: str) -> None:
        requests = [*self._asked.values(), *self._waiting]
        self._asked.clear()
        self._waiting.clear()
        for request in requests:
            request.answer.set_exception(LinkError(self._server, reason))

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(linger=0)
        self._socket = self._monitor = self._session = self._keys = self._greeting = None

    # ---- messages ----

    def _take_one(self) -> bool:
        assert self._socket is not None
        try:
            frames = self._socket.recv_multipart(zmq.DONTWAIT, copy=False)
        except zmq.Again:
            return False
        if len(frames) == 1:
            self._take_open(frames[0].buffer)
        elif self._session is None or len(frames) != 3 or len(frames[2].buffer) != forms.TAG:
            raise WireError(f"a message of {len(frames)} frames, where another was expected")
        else:
            self._take_known([frame.buffer for frame in frames])
        return True

    def _take_open(self, header: Any) -> None:
        said = forms.unpack(header, forms.OF_SERVERS)
        if said["kind"] == "refuse":
            self._fail(self._caller.events.refused_because.get(said["reason"], "it refused the connection"))
        elif said["kind"] == "challenge" and self._greeting is not None and self._keys is None:
            self._keys = session.derive(self._caller.secret, self._greeting, said["nonce"])
            self._send([forms.pack("proof", proof=self._keys.asker_proof)])
        elif said["kind"] == "welcome" and self._keys is not None and self._session is None:
            if not hmac.compare_digest(said["proof"], self._keys.server_proof):
                raise RefusedError("a wrong proof: it does not know this job's secret")
            channels = Channel(self._keys.to_server), Channel(self._keys.to_asker)
            self._session = Session(self._caller.number, *channels)
            self._begin()
        else:
            raise WireError(f"{said['kind']!r} where it was not expected")

    def _begin(self) -> None:
        self._state, self._met, self._heard = State.READY, True, time.monotonic()
        if self._warned:
            self._warned = False
            self._caller.events.answers_again(self._server, self._place)
        self._send_waiting()

    def _take_known(self, frames: Sequence[memoryview]) -> None:
        assert self._session is not None
        header, payload, tag = frames
        if len(header) > forms.HEADER_BYTES:
            raise WireError(f"a header of {len(header)} bytes")
        self._session.receiving.check(header, payload, tag)
        self._heard = time.monotonic()
        said = forms.unpack(header, self._forms)
        if said["kind"] not in forms.SIGN_OF_LIFE:
            self._take_answer(said, payload)
            self._send_waiting()

    def _take_answer(self, said: dict[str, Any], payload: memoryview) -> None:
        request = self._asked.get(said["number"])
        if request is None:
            raise WireError("an answer to no request")
        if len(payload) > self._caller.protocol.answer_bytes:
            raise WireError(f"an answer of {len(payload)} bytes")
        request.take(said, payload)
        del self._asked[said["number"]]

    def _send_waiting(self) -> None:
        while self._session is not None and self._waiting and len(self._asked) < self._caller.in_flight:
            request = self._waiting.popleft()
            self._number += 1
            self._asked[self._number] = request
            request.sent_at = time.monotonic()
            header = forms.pack(request.kind, number=self._number, **request.fields)
            self._send([header, request.payload, self._session.sending.tag(header, request.payload)])

    def _send(self, frames: Sequence[Any]) -> None:
        assert self._socket is not None
        try:
            self._socket.send_multipart(frames, zmq.DONTWAIT, copy=False)
        except zmq.Again:
            self._fail("it accepts nothing")
