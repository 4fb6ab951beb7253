"""Sockets and wake-ups, as server and client both need them."""

from __future__ import annotations

import os

import zmq

_OF_CURVE = 64  # bytes; encryption makes a frame longer by fewer
HEARTBEAT = 1000  # milliseconds between two signs of life of the connection itself


def prepare(socket: zmq.Socket, most_bytes: int) -> None:
    """Sets what a socket must have before it is bound or connected; most_bytes may come in a frame, or a few more."""
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
        """What is polled."""
        return self._descriptor

    def ring(self) -> None:
        """Wakes the thread, now or when it polls next."""
        os.eventfd_write(self._descriptor, 1)

    def quiet(self) -> None:
        """Forgets that it was rung."""
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Lets go of it; nobody may ring any more."""
        os.close(self._descriptor)
