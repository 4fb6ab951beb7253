"""Checks before Horovod starts whether the hosts of a job can find each other by their own names.

Gloo listens at the address that a host's own name resolves to. If there is none, processes on that host end by a
signal. If it is the loopback address, ranks on other hosts cannot connect, and Horovod's start-up hangs or
aborts. So the ranks compare addresses first, and all of them get the same error.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from horovod.tensorflow import mpi_built


def check(reports: Sequence[dict[str, Any]]) -> None:
    """Raises an error if a host's own name does not resolve, or, in a job of several machines, to its loopback address.

    Args:
        reports: what `describe` returns, of all ranks; or of this one alone, if the others' are not known.

    Raises:
        ValueError: naming the hosts and what to do.
    """
    found = fault(reports) if _by_gloo() else None
    if found:
        raise ValueError(found)


def own() -> str:
    """The name of this host, as the launcher gave it or as the host knows it."""
    return os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()


def describe() -> dict[str, str | None]:
    """This machine's identity, its own name if that has no address, and both if that is a loopback address."""
    name = socket.gethostname()
    try:
        addresses = [str(found[4][0]) for found in socket.getaddrinfo(name, None)]
    except OSError:
        return {"machine": _machine(), "unknown": name, "loopback": None}
    address = next((each for each in addresses if "." in each), "")  # of IPv4
    return {
        "machine": _machine(),
        "unknown": None,
        "loopback": f"{name} -> {address}" if address.startswith("127.") else None,
    }


def fault(reports: Sequence[dict[str, Any]]) -> str | None:
    """What is wrong with the hosts that sent these reports; None if they can find each other."""
    unknown = sorted({report["unknown"] for report in reports if report["unknown"]})
    if unknown:
        return (
            f"A host's own name does not resolve there ({', '.join(unknown)}), and Gloo, which connects ranks, needs "
            "its address: write the host's network address and this name into its /etc/hosts (127.0.0.1 will do if all "
            "ranks run on one host), or start the job with MPI."
        )
    faulty = sorted({report["loopback"] for report in reports if report["loopback"]})
    if not faulty or len({report["machine"] for report in reports}) == 1:
        return None
    return (
        f"A host's own name resolves to its loopback address ({', '.join(faulty)}), so ranks on other hosts cannot "
        "reach it: give the name the host's network address in /etc/hosts on every host (Debian writes 127.0.1.1 "
        "there), or start the job with MPI."
    )


def _by_gloo() -> bool:
    """Whether Gloo is to connect the ranks: as the launcher says, and without one if Horovod has no MPI."""
    controller = os.environ.get("HOROVOD_CONTROLLER")
    return controller == "gloo" if controller else not mpi_built()


def _machine() -> str:
    """An identity that two processes share exactly if they can reach each other over the loopback interface."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot_id:
        return f"{boot_id.read().strip()}/{os.readlink('/proc/self/ns/net')}"
