"""An asking process's connection to one owner, and what becomes of it: see `State`.

    ABSENT -> GREETING -> READY -> RESTING -> KNOCKING -> READY or RESTING ...

A link is the client thread's own; others only ask `is_left_alone` and `complain`.
"""

from __future__ import annotations

import concurrent.futures
import enum
import hmac
import logging
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import zmq
import zmq.utils.monitor

from datacache.counters import Counters
from datacache.native import address, library
from datacache.peers import session, sockets, wire
from datacache.peers.session import Channel, Greeting, Keys, RefusedError, Session
from datacache.peers.wire import WireError

_IN_FLIGHT = 8  # requests that an owner has at a time from one process; others wait here
_AGAIN = 0.2  # seconds between two attempts to meet an owner that has not come up yet
_LOST = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_REASONS = {
    "secret": "it refused this process's secret: give all nodes the same",
    "data": "it has other data, or decodes them otherwise: give all nodes the same source and decode function",
    "node": "it is another node: World.peers must name the nodes in their order, the same on all of them",
    "version": "it runs another version of datacache",
}
_log = logging.getLogger(__name__)


class Patience(NamedTuple):
    """How long things may take, in seconds, all from one number.

    Attributes:
        silence: without a sign of life, until a peer counts as gone.
    """

    silence: float = 10.0

    @property
    def arrival(self) -> float:
        """Until a peer that was never met counts as gone: processes of a job do not all start at once."""
        return 2 * self.silence

    @property
    def answer(self) -> float:
        """Until a request, fetched by an owner that is alive, counts as lost."""
        return 12 * self.silence

    @property
    def rest(self) -> float:
        """For which a peer that failed is left alone."""
        return self.silence


class Caller(NamedTuple):
    """Who asks, and what all its links have in common."""

    node: int
    data: str
    secret: bytes
    sample_bytes: int
    patience: Patience
    counters: Counters
    encrypt: bool


class State(enum.Enum):
    """What becomes of a link."""

    ABSENT = "never met, and nothing sent"
    GREETING = "connecting, or in the handshake"
    READY = "in use"
    RESTING = "failed, and left alone for a while"
    KNOCKING = "failed, and in the handshake again; nothing is asked of it before it answers"


class Answer:
    """What an owner sent for a request: whole rows, whose checksums are yet to be compared."""

    def __init__(self, found: np.ndarray, payload: Any = b"", labels: Any = b"", checksums: Any = b""):
        """Takes what came: found bool [n], and payload, labels and checksums of those that were found, as bytes."""
        self._found, self._payload = found, payload
        self._labels, self._checksums = labels, checksums

    def place(self, indices: np.ndarray, places: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Copies the samples that are there, and whole, into rows and labels.

        Args:
            indices: uint64 [n], as they were asked for.
            places: int64 [n], the row of each.
            rows: uint8 [m, bytes of a sample]; those that are not found are undefined after.
            labels: int64 [m].

        Returns:
            bool [n], which were found.
        """
        found = self._found.copy()
        if not found.any():
            return found
        indices, places = indices[found], places[found].astype(np.uint64)
        if not indices.flags.c_contiguous or int(places.max()) >= len(rows):
            raise ValueError(f"Expected places in [0, {len(rows)}), got {places.max()}.")
        sent = np.frombuffer(self._payload, np.uint8)
        own = np.frombuffer(self._labels, wire.LABEL).astype(np.int64)
        sums = np.frombuffer(self._checksums, wire.CHECKSUM).astype(np.uint64)
        sound = np.empty(len(indices), np.uint8)
        data = [address(array) for array in (indices, own, sums, rows, places, sound)]
        library().datacache_records_place(address(sent), rows.shape[1], len(indices), *data)
        labels[places] = own
        found[found] = sound.astype(bool)
        return found


class Request:
    """Samples that an owner is asked for, and the promise of an answer, which is kept in any case."""

    def __init__(self, indices: np.ndarray):
        """Takes uint64 [n]."""
        self.indices = indices
        self.answer: concurrent.futures.Future[Answer] = concurrent.futures.Future()
        self.sent_at = 0.0

    def give_up(self) -> None:
        """Answers that nothing is there."""
        self.answer.set_result(Answer(np.zeros(len(self.indices), bool)))


class Link:
    """A connection to one owner."""

    def __init__(self, context: zmq.Context, caller: Caller, owner: int, place: str):
        """Takes number and address, host:port, of the owner; connects at the first request."""
        self._context, self._caller, self._owner, self._place = context, caller, owner, place
        self._socket: zmq.Socket | None = None
        self._monitor: zmq.Socket | None = None
        self._keys: Keys | None = None
        self._session: Session | None = None
        self._greeting: Greeting | None = None
        self._waiting: list[Request] = []
        self._asked: dict[int, Request] = {}
        self._number = 0
        self._state, self._began, self._heard, self._again = State.ABSENT, 0.0, 0.0, 0.0
        self._met = self._warned = False
        self._reason = ""  # of the last failure

    @property
    def is_left_alone(self) -> bool:
        """Whether the owner has failed, and has not answered again yet."""
        return self._state in (State.RESTING, State.KNOCKING)

    @property
    def needs_clock(self) -> bool:
        """Whether something is to be given up, or tried again, when its time has come."""
        return self._state not in (State.ABSENT, State.READY) or bool(self._asked)

    def sockets(self) -> list[zmq.Socket]:
        """What is to be polled."""
        return [each for each in (self._socket, self._monitor) if each is not None]

    def ask(self, request: Request) -> None:
        """Sends a request, or keeps it until it can be sent."""
        if self.is_left_alone:
            request.give_up()
            return
        self._waiting.append(request)
        if self._state is State.ABSENT:
            self._begin_with(State.GREETING)
        else:
            self._send_waiting()

    def complain(self) -> None:
        """Warns that the owner is left alone, once for each time; it is no matter until somebody wants something."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "datacache: node %d at %s is left alone: %s. Its samples come from this node's disk or the source "
                "until it answers again; it is tried every %g s.",
                self._owner,
                self._place,
                self._reason,
                self._caller.patience.rest,
            )

    def take_all(self) -> None:
        """Takes what has come; what must not be ends the connection."""
        try:
            while self._socket is not None and self._take_one():
                pass
            self._look_at_connection()
        except (WireError, RefusedError) as complaint:
            self._fail(f"it sent {complaint}")

    def look_at_clock(self) -> None:
        """Gives up what takes too long, and tries again what is to be tried again."""
        now, patience = time.monotonic(), self._caller.patience
        if self._state is State.RESTING and now >= self._again:
            self._begin_with(State.KNOCKING)
        elif self._state in (State.GREETING, State.KNOCKING):
            if now - self._began > (patience.silence if self._met else patience.arrival):
                self._fail(f"it does not answer{self._hint()}")
            elif self._socket is None and now >= self._again:
                self._connect()
        elif self._state is State.READY and self._asked:
            oldest = min(request.sent_at for request in self._asked.values())
            if now - max(self._heard, oldest) > patience.silence:
                self._fail(f"nothing came from it for {patience.silence:g} s")
            elif now - oldest > patience.answer:
                self._fail(f"a request was not answered in {patience.answer:g} s")

    def close(self) -> None:
        """Gives up all requests and closes the connection."""
        self._disconnect()
        self._give_up_all()

    # ---- the connection ----

    def _begin_with(self, state: State) -> None:
        self._state, self._began = state, time.monotonic()
        self._connect()

    def _connect(self) -> None:
        caller = self._caller
        try:
            self._open()
        except (OSError, zmq.ZMQError) as error:  # such as a name that is not known
            self._lost(str(error))
            return
        self._greeting = Greeting(caller.node, self._owner, caller.data, session.nonce())
        self._send([wire.pack("hello", version=wire.VERSION, **self._greeting._asdict())])

    def _open(self) -> None:
        self._socket = socket = self._context.socket(zmq.DEALER)
        sockets.prepare(socket, sockets.reply_limit(self._caller.sample_bytes))
        socket.setsockopt(zmq.RECONNECT_IVL, -1)  # a new connection is a new session
        if self._caller.encrypt:
            socket.curve_serverkey, _ = session.curve_keys(self._caller.secret)
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        self._monitor = socket.get_monitor_socket(_LOST)
        socket.connect(sockets.endpoint(self._place))

    def _look_at_connection(self) -> None:
        while self._monitor is not None and self._monitor.poll(0):
            zmq.utils.monitor.recv_monitor_message(self._monitor)
            self._lost(f"the connection was refused or has ended{self._hint()}")

    def _hint(self) -> str:
        """CURVE tells neither side why: a connection ends, or where the last try is under way, nothing comes."""
        return " (with CURVE, also where the secrets differ)" if self._caller.encrypt else ""

    def _lost(self, reason: str) -> None:
        """Tries again where the owner was never met, and may be about to start; fails otherwise."""
        if self._state is State.GREETING and not self._met:
            self._disconnect()
            self._again = time.monotonic() + _AGAIN
            if self._again - self._began < self._caller.patience.arrival:
                return
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        self._disconnect()
        if self._state is not State.KNOCKING:
            self._caller.counters.add("failures.peers")
        self._state, self._again = State.RESTING, time.monotonic() + self._caller.patience.rest
        self._met = True  # is not waited for any more as one that is about to start
        self._reason = reason
        if self._asked or self._waiting:
            self.complain()
        self._give_up_all()

    def _give_up_all(self) -> None:
        requests = [*self._asked.values(), *self._waiting]
        self._asked, self._waiting = {}, []
        for request in requests:
            request.give_up()

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
        elif self._session is None or len(frames) != 3 or len(frames[2].buffer) != wire.TAG:
            raise WireError(f"a message of {len(frames)} frames, where another was expected")
        else:
            self._take_known([frame.buffer for frame in frames])
        return True

    def _take_open(self, header: Any) -> None:
        said = wire.unpack(header, "challenge", "welcome", "refuse")
        if said["kind"] == "refuse":
            self._fail(_REASONS.get(said["reason"], "it refused the connection"))
        elif said["kind"] == "challenge" and self._greeting is not None and self._keys is None:
            self._keys = session.derive(self._caller.secret, self._greeting, said["nonce"])
            self._send([wire.pack("proof", proof=self._keys.asker_proof)])
        elif said["kind"] == "welcome" and self._keys is not None and self._session is None:
            if not hmac.compare_digest(said["proof"], self._keys.owner_proof):
                raise RefusedError("a wrong proof: it does not know this job's secret")
            self._session = Session(Channel(self._keys.to_owner), Channel(self._keys.to_asker))
            self._begin()
        else:
            raise WireError(f"{said['kind']!r} where it was not expected")

    def _begin(self) -> None:
        self._state, self._met, self._heard = State.READY, True, time.monotonic()
        if self._warned:
            self._warned = False
            _log.info("datacache: node %d at %s answers again.", self._owner, self._place)
        self._send_waiting()

    def _take_known(self, frames: Sequence[Any]) -> None:
        assert self._session is not None
        header, payload, tag = frames
        if len(header) > wire.HEADER_BYTES:
            raise WireError(f"a header of {len(header)} bytes")
        self._session.receiving.check(header, payload, tag)
        self._heard = time.monotonic()
        said = wire.unpack(header, "have", "wait")
        if said["kind"] == "have":
            self._take_answer(said, payload)
            self._send_waiting()

    def _take_answer(self, said: dict[str, Any], payload: Any) -> None:
        request = self._asked.get(said["number"])
        if request is None:
            raise WireError("an answer to no request")
        found = np.frombuffer(said["found"], np.uint8) != 0
        count = int(found.sum())
        wanted = (len(request.indices), count * wire.LABEL.itemsize, count * wire.CHECKSUM.itemsize)
        if (len(found), len(said["labels"]), len(said["checksums"])) != wanted:
            raise WireError(f"an answer for {len(found)} samples with {len(said['labels'])} bytes of labels")
        if len(payload) != count * self._caller.sample_bytes:
            raise WireError(f"{len(payload)} bytes for {count} samples of {self._caller.sample_bytes}")
        del self._asked[said["number"]]
        request.answer.set_result(Answer(found, payload, said["labels"], said["checksums"]))

    def _send_waiting(self) -> None:
        while self._session is not None and self._waiting and len(self._asked) < _IN_FLIGHT:
            request = self._waiting.pop(0)
            self._number += 1
            self._asked[self._number] = request
            request.sent_at = time.monotonic()
            header = wire.pack("ask", number=self._number, count=len(request.indices))
            payload = request.indices.astype(wire.INDEX).tobytes()
            self._send([header, payload, self._session.sending.tag(header, payload)])

    def _send(self, frames: list[bytes]) -> None:
        assert self._socket is not None
        try:
            self._socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            self._fail("it takes nothing")
