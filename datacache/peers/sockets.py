"""Addresses, sockets and wake-ups, as server and client both need them."""

from __future__ import annotations

import os
import socket as sockets

import zmq

from datacache.peers import wire

HEARTBEAT = 1000  # milliseconds between two signs of life of the connection itself


def split(address: str) -> tuple[str, int]:
    """Host and port of host:port, or [host]:port.

    Raises:
        ValueError: where it is neither.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"Expected an address host:port, such as 10.0.0.1:7070, got {address!r}.")
    return host, int(port)


def endpoint(address: str) -> str:
    """An address as ZeroMQ wants it; names are looked up.

    Raises:
        OSError: where the name is not known.
    """
    host, port = split(address)
    family, *_, place = sockets.getaddrinfo(host, port, type=sockets.SOCK_STREAM)[0]
    return f"tcp://[{place[0]}]:{port}" if family == sockets.AF_INET6 else f"tcp://{place[0]}:{port}"


def prepare(socket: zmq.Socket, most_bytes: int) -> None:
    """Sets what a socket must have before it is bound or connected."""
    socket.linger = 0
    socket.ipv6 = True
    socket.maxmsgsize = most_bytes
    socket.setsockopt(zmq.HANDSHAKE_IVL, 5 * HEARTBEAT)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30 * HEARTBEAT)


def reply_limit(sample_bytes: int) -> int:
    """The largest frame of a reply for samples of this size."""
    return max(wire.HEADER_BYTES, samples_at_a_time(sample_bytes) * sample_bytes)


def samples_at_a_time(sample_bytes: int) -> int:
    """How many samples are asked for in one request."""
    return max(1, min(wire.MOST_SAMPLES, wire.MOST_BYTES // max(1, sample_bytes)))


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
