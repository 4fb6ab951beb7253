"""Finds the network interface of a host for a job; it may have another name on each host.

    python examples/launch/interfaces.py WANTED ADDRESSES COMMAND...

runs a rank's command with the interface of the rank's host, for Gloo and for NCCL. WANTED lists names (eth0,ens3) and
networks (10.1.0.0/16), of which each host takes the first that it has; if it is empty, the interface that leads to the
first address in ADDRESSES which is not the host's own.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from typing import NamedTuple

import psutil


class Interface(NamedTuple):
    """An interface of this host and its IPv4 address."""

    name: str
    address: str


def interfaces() -> list[Interface]:
    """The interfaces of this host that have an IPv4 address, once for each address."""
    return [
        Interface(name, each.address)
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET
    ]


def named(wanted: Sequence[str]) -> Interface | None:
    """The first interface that has one of these names or an address in one of these networks; None if none has."""
    for each in wanted:
        for interface in interfaces():
            if _matches(interface, each):
                return interface
    return None


def leading_to(addresses: Sequence[str]) -> Interface | None:
    """The interface by which this host reaches the first address that is not its own; None if there is none."""
    own = {interface.address: interface for interface in interfaces()}
    for address in addresses:
        if address in own:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, 9))  # sends nothing
            except OSError:
                continue
            return own.get(probe.getsockname()[0])
    return None


def described() -> str:
    """The interfaces of this host, for a message."""
    return ", ".join(f"{interface.name} ({interface.address})" for interface in interfaces()) or "none"


def is_network(wanted: str) -> bool:
    """Whether this is a network such as 10.1.0.0/16, and not a name.

    Raises:
        ValueError: if it looks like a network and is none.
    """
    if "/" not in wanted:
        return False
    ipaddress.IPv4Network(wanted, strict=False)
    return True


def _matches(interface: Interface, wanted: str) -> bool:
    if is_network(wanted):
        return ipaddress.IPv4Address(interface.address) in ipaddress.IPv4Network(wanted, strict=False)
    return interface.name == wanted


def main() -> None:
    """Runs the command in place of this program."""
    wanted, addresses, *command = sys.argv[1:]
    chosen = named(wanted.split(",")) if wanted else leading_to(addresses.split(","))
    if chosen is None:
        sought = f"is or has an address in {wanted}" if wanted else f"leads to {addresses}"
        sys.exit(f"{socket.gethostname()}: no interface {sought}; there are {described()}. See --network-interfaces.")
    os.environ["HOROVOD_GLOO_IFACE"] = os.environ["NCCL_SOCKET_IFNAME"] = chosen.name
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
