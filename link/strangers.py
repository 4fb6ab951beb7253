"""Which connections are open: those that have not yet shown that they know the job's secret may not stay long.

ZeroMQ keeps a connection as long as the other side answers its heartbeats, whatever it sends; so anybody who reaches
the port could use up the process's file descriptors. ZeroMQ has no call to end one connection, but reports each one's
descriptor, and treats one that is shut down as ended by the other side. Nor does it report whose connection has ended;
that is found by descriptor, too.
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import time
from collections import OrderedDict
from typing import Any, NamedTuple

import zmq
import zmq.utils.monitor

_LONGEST = 5.0  # seconds for a handshake
_BRIEF = 1.0  # seconds for which more strangers are tolerated: all processes of a job may connect at once
_MOST = 64
# The events that report a descriptor. A failed handshake reports an error number, which may be another connection's
# descriptor, and is followed by one of these.
_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class _Stranger(NamedTuple):
    since: float
    peer: Any  # its address, None if it was gone before it could be asked


class Strangers:
    """The connections of a bound socket by descriptor: those not known yet, the oldest first, and those that are.

    Attributes:
        monitor: the socket to poll for `look`.
    """

    def __init__(self, socket: zmq.Socket):
        """Takes a socket that is about to be bound; from then on only its thread may use this."""
        self.monitor = socket.get_monitor_socket(zmq.EVENT_ACCEPTED | _ENDED)
        self._found: OrderedDict[int, _Stranger] = OrderedDict()
        self._known: dict[int, bytes] = {}
        self._ended: list[bytes] = []

    def know(self, identity: zmq.Frame) -> None:
        """Marks the connection of a message, of which this is the first frame, as known."""
        descriptor = int(identity.get(zmq.SRCFD))
        if self._known.get(descriptor) != identity.bytes:
            self._take_note()  # first, as the descriptor may have been another connection's
            if self._found.pop(descriptor, None) is None:
                self._ended.append(identity.bytes)  # since it sent this message
            else:
                self._known[descriptor] = identity.bytes

    @property
    def has_news(self) -> bool:
        """Whether `look` has something to return that the monitor will not signal again."""
        return bool(self._ended)

    def seconds_left(self) -> float | None:
        """Seconds until `look` may have something to close; None if there are no strangers."""
        if not self._found:
            return None
        oldest = next(iter(self._found.values()))
        limit = _BRIEF if len(self._found) > _MOST else _LONGEST
        return max(0.0, oldest.since + limit - time.monotonic())

    def look(self) -> list[bytes]:
        """Records which connections have come and gone, and ends those of strangers that stay too long.

        Returns:
            The identities of known connections that have ended since. Their last messages may not have been received
            yet.
        """
        self._take_note()
        while self.seconds_left() == 0:
            descriptor, stranger = self._found.popitem(last=False)
            _shut_down(descriptor, stranger.peer)
        ended, self._ended = self._ended, []
        return ended

    def _take_note(self) -> None:
        while self.monitor.poll(0):
            told = zmq.utils.monitor.recv_monitor_message(self.monitor)
            descriptor = int(told["value"])
            self._found.pop(descriptor, None)
            if descriptor in self._known:
                self._ended.append(self._known.pop(descriptor))
            if told["event"] == zmq.EVENT_ACCEPTED:
                self._found[descriptor] = _Stranger(time.monotonic(), _peer(descriptor))


def _peer(descriptor: int) -> Any:
    with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(descriptor)) as connection:
        return connection.getpeername()
    return None


def _shut_down(descriptor: int, peer: Any) -> None:
    """Ends the connection with this peer, and nothing else that the descriptor may stand for by now."""
    with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(descriptor)) as connection:
        if peer is not None and connection.getpeername() == peer:
            connection.shutdown(sockets.SHUT_RDWR)
