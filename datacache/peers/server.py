"""The side that serves: one thread that answers out of the memory level, and a few that fetch what is not there yet."""

from __future__ import annotations

import collections
import concurrent.futures
import errno
import hmac
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import zmq

from datacache.buffers import Buffers
from datacache.counters import Counters
from datacache.levels import Record
from datacache.native import address, library
from datacache.peers import session, sockets, wire
from datacache.peers.session import Channel, Greeting, Keys, RefusedError, Session
from datacache.peers.strangers import Strangers
from datacache.peers.wire import WireError
from datacache.workers import Workers

_MOST_CONNECTIONS = 4096  # that are known, or are about to be; the oldest is forgotten first
_MOST_FILLING = 65536  # samples that are being fetched for others; what is asked beyond is not there
_SIGN_OF_LIFE = 0.5  # seconds between two messages to those who wait for samples that are being fetched
_log = logging.getLogger(__name__)


class Shelf(NamedTuple):
    """What a server serves from.

    Attributes:
        owned: the samples.
        sample_bytes: of each.
        gather: copies what is in memory, as `Level.gather`.
        fetch: from index to record: gets it from below and keeps it in memory, if it fits; on several threads at once.
    """

    owned: range
    sample_bytes: int
    gather: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    fetch: Callable[[int], Record]


class _Order:
    """A request whose samples are being fetched."""

    def __init__(self, identity: bytes, number: int, indices: np.ndarray):
        self.identity, self.number, self.indices = identity, number, indices
        self.fetching: dict[int, concurrent.futures.Future[Record]] = {}
        self.left = 0  # of those that are being fetched
        self.lock = threading.Lock()


class Server:
    """Serves a node's samples to its peers until it is closed."""

    def __init__(
        self,
        bind: str,
        node: int,
        data: str,
        secret: bytes,
        shelf: Shelf,
        counters: Counters,
        encrypt: bool = False,
        workers: int = 4,
    ):
        """Binds to exactly this address and starts to serve.

        Args:
            bind: host:port.
            node: number of this node.
            data: says what the samples are: who means other data is refused.
            secret: of the job.
            shelf: what is served.
            counters: where it is counted.
            encrypt: serve by CURVE only.
            workers: threads that fetch.

        Raises:
            OSError: where the address cannot be bound to.
        """
        self._node, self._data, self._secret, self._shelf = node, data, secret, shelf
        self._counters, self._process = counters, os.getpid()
        self._guests: collections.OrderedDict[bytes, Keys] = collections.OrderedDict()  # in their handshake
        self._sessions: collections.OrderedDict[bytes, Session] = collections.OrderedDict()
        self._orders: set[_Order] = set()
        self._done: collections.deque[_Order] = collections.deque()
        self._filling, self._told_at = 0, 0.0
        self._warned: set[str] = set()
        self._closing = False
        self._buffers = Buffers(0)
        self._buffer_bytes = 0
        self._context, self._alarm = zmq.Context(), sockets.Alarm()
        self._socket = self._context.socket(zmq.ROUTER)
        self._strangers = Strangers(self._socket)
        try:
            _bind(self._socket, bind, secret if encrypt else None)
        except BaseException:
            self._context.destroy(linger=0)
            self._alarm.close()
            raise
        self._workers = Workers(workers, "datacache-serve")
        self._thread = threading.Thread(target=self._run, name="datacache-server", daemon=True)
        self._thread.start()

    def close(self, patience: float | None = None) -> bool:
        """Stops; who waits for samples gets them from its own lower levels. Calling it again does nothing.

        Args:
            patience: seconds for what is being fetched, as for `Workers.close`.

        Returns:
            Whether nothing is being fetched any more.
        """
        if self._closing or os.getpid() != self._process:
            return True
        self._closing = True
        self._alarm.ring()
        self._thread.join()
        ended = self._workers.close(patience)
        self._alarm.close()
        return ended

    # ---- the thread ----

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._alarm.fileno(), zmq.POLLIN)
        poller.register(self._strangers.monitor, zmq.POLLIN)
        try:
            while not self._closing:
                poller.poll(self._timeout())
                self._alarm.quiet()
                self._strangers.look()
                self._receive_all()
                while self._done:
                    self._finish(self._done.popleft())
                self._give_signs_of_life()
        finally:
            self._context.destroy(linger=0)

    def _timeout(self) -> int | None:
        """Milliseconds until something is to be done that nobody asks for."""
        times = [_SIGN_OF_LIFE] if self._orders else []
        left = self._strangers.seconds_left()
        if left is not None:
            times.append(left)
        return 1 + int(1000 * min(times)) if times else None

    def _receive_all(self) -> None:
        while not self._closing:
            try:
                identity, *received = self._socket.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            try:
                self._take(identity.bytes, [frame.bytes for frame in received])
            except (WireError, RefusedError) as complaint:
                self._refuse(identity.bytes, "message", str(complaint))
            if identity.bytes in self._sessions:
                self._strangers.know(identity)

    def _take(self, identity: bytes, frames: Sequence[bytes]) -> None:
        if len(frames) == 1:
            self._greet(identity, wire.unpack(frames[0], "hello", "proof"))
            return
        known = self._sessions.get(identity)
        if known is None:
            self._refuse(identity, "session", "a request before the handshake")
            return
        if len(frames) != 3 or len(frames[0]) > wire.HEADER_BYTES or len(frames[2]) != wire.TAG:
            raise WireError(f"a message of {len(frames)} frames of {[len(frame) for frame in frames][:4]} bytes")
        self._sessions.move_to_end(identity)
        known.receiving.check(*frames)
        self._answer(identity, wire.unpack(frames[0], "ask"), frames[1])

    # ---- the handshake ----

    def _greet(self, identity: bytes, said: dict[str, Any]) -> None:
        if said["kind"] == "proof":
            self._welcome(identity, said["proof"])
            return
        self._sessions.pop(identity, None)
        if said["version"] != wire.VERSION:
            self._refuse(identity, "version", f"a peer of version {said['version']}, this is {wire.VERSION}")
        elif said["owner"] != self._node:
            self._refuse(identity, "node", f"a peer that looks for node {said['owner']}, this is {self._node}")
        elif said["data"] != self._data:
            self._refuse(identity, "data", f"node {said['asker']}, which reads other data, or decodes them otherwise")
        elif len(said["nonce"]) != wire.NONCE:
            raise WireError(f"a nonce of {len(said['nonce'])} bytes")
        else:
            greeting = Greeting(said["asker"], said["owner"], said["data"], said["nonce"])
            challenge = session.nonce()
            _remember(self._guests, identity, session.derive(self._secret, greeting, challenge))
            self._send(identity, [wire.pack("challenge", nonce=challenge)])

    def _welcome(self, identity: bytes, proof: bytes) -> None:
        keys = self._guests.pop(identity, None)
        if keys is None:
            self._refuse(identity, "session", "a proof that was not asked for")
        elif not hmac.compare_digest(proof, keys.asker_proof):
            self._refuse(identity, "secret", "a peer that does not know this job's secret")
        else:
            _remember(self._sessions, identity, Session(Channel(keys.to_asker), Channel(keys.to_owner)))
            self._send(identity, [wire.pack("welcome", proof=keys.owner_proof)])

    def _refuse(self, identity: bytes, reason: str, what: str) -> None:
        """Tells the other side in a word, and whoever reads the log once for each reason."""
        self._guests.pop(identity, None)
        self._sessions.pop(identity, None)
        self._counters.add("refused.peers")
        if reason not in self._warned:
            self._warned.add(reason)
            _log.warning("datacache: node %d refused %s; further ones are only counted.", self._node, what)
        self._send(identity, [wire.pack("refuse", reason=reason)])

    # ---- requests ----

    def _answer(self, identity: bytes, said: dict[str, Any], payload: bytes) -> None:
        indices = np.frombuffer(payload, wire.INDEX) if len(payload) == 8 * said["count"] else None
        most = sockets.samples_at_a_time(self._shelf.sample_bytes)
        if indices is None or not 0 < len(indices) <= most:
            raise WireError(f"a request for {said['count']} samples in {len(payload)} bytes, of {most} at the most")
        order = _Order(identity, said["number"], indices.astype(np.uint64))
        rows, labels, found = self._gather(order.indices)
        owned = self._shelf.owned
        missing = [index for index in map(int, order.indices[~found]) if index in owned]
        if not missing or self._filling + len(missing) > _MOST_FILLING:
            self._reply(order, rows, labels, found)
        else:
            self._fill(order, sorted(set(missing)))

    def _fill(self, order: _Order, missing: list[int]) -> None:
        if not self._orders:
            self._told_at = time.monotonic()
        order.left = len(missing)
        self._filling += len(missing)
        self._orders.add(order)
        for index in missing:
            order.fetching[index] = self._workers.submit(self._shelf.fetch, index)
        for future in list(order.fetching.values()):
            future.add_done_callback(lambda _: self._one_fetched(order))

    def _one_fetched(self, order: _Order) -> None:
        with order.lock:
            order.left -= 1
            last = order.left == 0
        if last and not self._closing:
            self._done.append(order)
            self._alarm.ring()

    def _finish(self, order: _Order) -> None:
        self._orders.discard(order)
        self._filling -= len(order.fetching)
        if order.identity not in self._sessions:
            return
        rows, labels, found = self._gather(order.indices)
        for row in np.flatnonzero(~found):
            record = _result(order.fetching.get(int(order.indices[row])))
            if record is not None and len(record.payload) == rows.shape[1]:
                rows[row] = np.frombuffer(record.payload, np.uint8)
                labels[row], found[row] = record.label, True
        self._reply(order, rows, labels, found)

    def _gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        wanted = len(indices) * self._shelf.sample_bytes
        if wanted > self._buffer_bytes:
            self._buffers, self._buffer_bytes = Buffers(wanted), wanted
        rows = self._buffers.take()[:wanted].reshape(len(indices), self._shelf.sample_bytes)
        labels = np.empty(len(indices), np.int64)
        return rows, labels, self._shelf.gather(indices, rows, labels)

    def _reply(self, order: _Order, rows: np.ndarray, labels: np.ndarray, found: np.ndarray) -> None:
        indices = order.indices
        if not found.all():
            rows, labels, indices = rows[found], labels[found], indices[found]
        checksums = np.empty(len(indices), np.uint64)
        places = [address(array) for array in (indices, labels, checksums)]
        library().datacache_records_checksums(address(rows), rows.shape[1], len(indices), *places)
        header = wire.pack(
            "have",
            number=order.number,
            found=found.astype(np.uint8).tobytes(),
            labels=labels.astype(wire.LABEL).tobytes(),
            checksums=checksums.astype(wire.CHECKSUM).tobytes(),
        )
        self._counters.add("served.samples", len(indices))
        self._counters.add("served.bytes", rows.nbytes)
        self._send_known(order.identity, header, rows.reshape(-1).data)

    def _give_signs_of_life(self) -> None:
        if not self._orders or time.monotonic() - self._told_at < _SIGN_OF_LIFE:
            return
        self._told_at = time.monotonic()
        for identity in {order.identity for order in self._orders}:
            self._send_known(identity, wire.pack("wait"), b"")

    def _send_known(self, identity: bytes, header: bytes, payload: Any) -> None:
        known = self._sessions.get(identity)
        if known is not None and not self._send(identity, [header, payload, known.sending.tag(header, payload)]):
            del self._sessions[identity]

    def _send(self, identity: bytes, frames: list[Any]) -> bool:
        """Sends without waiting; False where the other side is gone, or takes nothing."""
        try:
            self._socket.send_multipart([identity, *frames], zmq.DONTWAIT, copy=False)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, errno.EHOSTUNREACH):
                return False
            raise
        return True


def _bind(socket: zmq.Socket, bind: str, curve_secret: bytes | None) -> None:
    sockets.prepare(socket, max(wire.HEADER_BYTES, wire.REQUEST_BYTES))
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if curve_secret is not None:
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = session.curve_keys(curve_secret)
    try:
        socket.bind(sockets.endpoint(bind))
    except (OSError, zmq.ZMQError) as error:
        raise OSError(
            error.errno,
            f"Peers cannot be served at {bind} ({error}): expected an address of this machine and a port that "
            "is free; each DataCache of a process needs a port of its own",
        ) from None


def _remember(known: collections.OrderedDict, identity: bytes, what: Any) -> None:
    known[identity] = what
    known.move_to_end(identity)
    while len(known) > _MOST_CONNECTIONS:
        known.popitem(last=False)


def _result(future: concurrent.futures.Future[Record] | None) -> Record | None:
    """What was fetched; None where it could not be, which the asking node finds out, and says, by itself."""
    if future is None or future.cancelled() or future.exception() is not None:
        return None
    return future.result()
