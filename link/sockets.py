"""Sockets and wake-ups, as both server and client need them."""

from __future__ import annotations

import os

import zmq

_OF_CURVE = 64  # bytes; encryption adds less than this to a frame
HEARTBEAT = 1000  # milliseconds between two signs of life of the connection itself


def prepare(socket: zmq.Socket, most_bytes: int) -> None:
    """Sets a socket's options before it is bound or connected; a frame may have slightly more than most_bytes."""
    socket.linger = 0
    socket.ipv6 = True
    socket.maxmsgsize = most_bytes + _OF_CURVE
    socket.setsockopt(zmq.HANDSHAKE_IVL, 5 * HEARTBEAT)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30 * HEARTBEAT)


class Alarm:
    """Wakes a thread that polls."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._descriptor

    def ring(self) -> None:
        """Wakes the thread, now or when it polls next."""
        os.eventfd_write(self._descriptor, 1)

    def quiet(self) -> None:
        """Clears the alarm."""
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Closes it; it must not be rung afterwards."""
        os.close(self._descriptor)
