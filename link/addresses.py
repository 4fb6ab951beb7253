"""Addresses: host:port, or [host]:port with IPv6; and the addresses of network interfaces and names."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_REQUEST = struct.Struct("16s24s")  # struct ifreq: a name, then, as the answer, struct sockaddr_in


def split(address: str) -> tuple[str, int]:
    """The host and port of an address.

    Raises:
        ValueError: if it is not one.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"Expected an address host:port, such as 10.0.0.1:7070, got {address!r}.")
    return host, int(port)


def join(host: str, port: int) -> str:
    """The address of a host and a port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def endpoint(address: str) -> str:
    """An address in ZeroMQ's form; names are looked up.

    Raises:
        OSError: if the name is not known.
    """
    host, port = split(address)
    place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
    return f"tcp://{join(str(place[0]), port)}"


def resolve(bind: str) -> str:
    """The address of a network interface, or of a name or an address.

    Raises:
        OSError: if there is none, or it stands for all addresses of the machine.
    """
    if bind in (name for _, name in socket.if_nameindex()):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            try:
                answer = fcntl.ioctl(asked, _GET_ADDRESS, _REQUEST.pack(bind.encode(), b""))
            except OSError as error:
                raise OSError(error.errno, f"interface {bind} has no IPv4 address ({error.strerror})") from None
        return socket.inet_ntoa(answer[20:24])
    found = str(socket.getaddrinfo(bind, None, type=socket.SOCK_STREAM)[0][4][0])
    if ipaddress.ip_address(found.partition("%")[0]).is_unspecified:
        raise OSError(f"{bind} is not a single address: pass that of the network that peers should use")
    return found


def hold(bind: str, port: int = 0) -> tuple[socket.socket, str]:
    """Reserves a port, so that it is not given to others.

    The socket is bound and does not listen, so that servers of the job's processes can bind to the port too, one at a
    time.

    Args:
        bind: as for `resolve`.
        port: 0 lets the system choose one.

    Returns:
        The socket, which reserves the port as long as it is open, and its address.

    Raises:
        OSError: as `resolve`, and if the port is taken.
    """
    host = resolve(bind)
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
    except BaseException:
        held.close()
        raise
    return held, join(*held.getsockname()[:2])
