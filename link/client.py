"""The asking side: one thread for a process, with a connection to each server."""

from __future__ import annotations

import concurrent.futures
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from link import addresses, forms, sockets
from link.asking import Answer, Asked, Caller, LinkError
from link.connection import Connection

_TICK = 100  # milliseconds between two checks of the clock, when it matters
_LATE = 0.5  # seconds between two checks, from which on this process was stopped, or had no processor


class Client:
    """Asks servers; called by several threads at once."""

    def __init__(self, places: Sequence[str], caller: Caller, name: str = "link-client"):
        """Takes the address of each server, host:port, in the order of their numbers; connects when one is first asked.

        Args:
            places: the addresses.
            caller: the asking process.
            name: of the thread.

        Raises:
            ValueError: if it is not an address, or the caller does not fit the protocol.
        """
        caller.protocol.check()
        forms.require(forms.OF_CLIENTS, "hello", caller.greeting(0)._asdict())
        for each in places:
            addresses.split(each)
        self._protocol, self._process = caller.protocol, os.getpid()
        self._closing, self._lock = False, threading.Lock()
        self._context, self._alarm = zmq.Context(), sockets.Alarm()
        self._connections = [Connection(self._context, caller, number, place) for number, place in enumerate(places)]
        self._inbox: queue.SimpleQueue[tuple[int, Asked]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(
        self, server: int, kind: str, payload: Any = b"", check: Callable[..., Any] = Answer, **fields: Any
    ) -> concurrent.futures.Future[Any]:
        """Asks a server.

        Only as many requests are sent to a server at a time as the caller allows, and others wait. Answers come in any
        order.

        Args:
            server: its number.
            kind: of the request.
            payload: bytes, or contiguous memory such as an array; it is not copied, and must not be changed before the
                future is done.
            check: makes the result from the answer's kind, fields and payload (a memoryview of what was received, not
                copied); by default an `Answer`. It runs on the client's thread, so it must be brief. If it raises a
                `WireError`, the connection ends; other exceptions go to the future.
            **fields: of the kind's form.

        Returns:
            The future of what `check` makes of the answer. It always completes, with a `LinkError` if the server cannot
            be reached, is left alone after a failure, or is lost before it answers, after `close`, and in a process
            that was forked from the one that made this. It cannot be cancelled.

        Raises:
            ValueError: if it is not a request of the protocol, or no server has this number.
        """
        if not 0 <= server < len(self._connections):
            raise ValueError(f"Expected the number of a server in [0, {len(self._connections)}), got {server}.")
        forms.require(self._protocol.requests, kind, fields)
        request = Asked(kind, fields, forms.flat(payload, self._protocol.request_bytes), check)
        reason = self._put(server, request)
        if reason:
            request.answer.set_exception(LinkError(server, reason))
        return request.answer

    def close(self) -> None:
        """Gives up all pending requests and closes all connections; calling it again does nothing."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._alarm.ring()
        self._thread.join()
        self._alarm.close()

    def _put(self, server: int, request: Asked) -> str | None:
        """Hands a request to the thread, or returns the reason why it cannot be sent."""
        if os.getpid() != self._process:
            return "this process was forked from the one that made its client"
        connection = self._connections[server]
        if connection.is_left_alone:
            connection.complain()
            return connection.reason
        with self._lock:
            if self._closing:
                return "this process has closed its client"
            self._inbox.put((server, request))
            self._alarm.ring()
        return None

    def _run(self) -> None:
        checked = time.monotonic()
        try:
            while not self._closing:
                self._poll()
                checked = self._allow_for_pause(checked)
                self._alarm.quiet()
                while not self._inbox.empty():
                    server, request = self._inbox.get()
                    self._connections[server].ask(request)
                for connection in self._connections:
                    connection.take_all()
                    connection.look_at_clock()
        finally:
            self._end()

    def _allow_for_pause(self, checked: float) -> float:
        """Returns the time now; if there was no check of the clock for long, no server counts as silent since then."""
        now = time.monotonic()
        if now - checked > _LATE:
            for connection in self._connections:
                connection.did_not_listen(now - checked - _TICK / 1000)
        return now

    def _poll(self) -> None:
        poller = zmq.Poller()
        poller.register(self._alarm.fileno(), zmq.POLLIN)
        for connection in self._connections:
            for socket in connection.sockets():
                poller.register(socket, zmq.POLLIN)
        poller.poll(_TICK if any(connection.needs_clock for connection in self._connections) else None)

    def _end(self) -> None:
        with self._lock:
            self._closing = True
        for connection in self._connections:
            connection.close()
        while not self._inbox.empty():
            server, request = self._inbox.get()
            request.answer.set_exception(LinkError(server, "this process has closed its client"))
        self._context.destroy(linger=0)
