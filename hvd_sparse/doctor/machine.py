"""What the machine has: its name and addresses, a GPU's driver, memory and what limits it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

from link import addresses

_DEVICES = Path("/dev")
_NETWORK = Path("/sys/class/net")
_GROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # the first version's control groups write a number near 2**63 for no limit


def found() -> dict[str, Any]:
    """All of it as JSON-serialisable values, by name."""
    return {
        "host": _host(),
        "interfaces": {name: _interface(name) for _, name in socket.if_nameindex()},
        "nvidia": {"devices": len(list(_DEVICES.glob("nvidia[0-9]*"))), "driver_cuda": _driver()},
        "shared_memory": {
            "bytes": _size("/dev/shm"),
            "opens_others": opens_others(),
            "switched_off": os.environ.get("HVD_SPARSE_SHARED_MEMORY") == "0",
        },
        "memory": {"bytes": _memory(), "limit": _limit()},
        "limits": {name: _of_process(name) for name in ("AS", "MEMLOCK", "NOFILE")},
    }


def opens_others() -> bool:
    """Whether a process may open the memory of another one of this user, as ranks of a node do."""
    memory = os.memfd_create("doctor")
    with contextlib.ExitStack() as closing:
        closing.callback(os.close, memory)
        other = closing.enter_context(
            subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[memory])
        )
        try:
            os.close(os.open(f"/proc/{other.pid}/fd/{memory}", os.O_RDWR))
        except OSError:
            return False
    return True


def _host() -> dict[str, Any]:
    name = socket.gethostname()
    try:
        found = [str(each[4][0]) for each in socket.getaddrinfo(name, None)]
    except OSError as error:
        return {"name": name, "error": str(error)}
    return {"name": name, "address": next((each for each in found if "." in each), found[0])}


def _interface(name: str) -> dict[str, Any]:
    """Its IPv4 address and megabits per second, None if it has none or does not say."""
    try:
        address = addresses.resolve(name)
    except OSError:
        address = None
    try:
        speed = int((_NETWORK / name / "speed").read_text())
    except (OSError, ValueError):
        speed = 0
    return {"address": address, "megabits": speed if speed > 0 else None}


def _driver() -> str | None:
    """The newest CUDA that the driver knows; None without a driver."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else f"{version.value // 1000}.{version.value % 1000 // 10}"


def _size(directory: str) -> int | None:
    try:
        return shutil.disk_usage(directory).total
    except OSError:
        return None


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limit() -> int | None:
    """The smallest limit of memory of the control groups of this process; None if there is none."""
    limits = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        root = _GROUPS / "memory" if "memory" in controllers.split(",") else _GROUPS if not controllers else None
        if root is not None:
            folder = root / path.lstrip("/")
            limits += [_number(each / file) for each in _upwards(folder, root) for file in _FILES]
    known = [limit for limit in limits if limit is not None and limit < _UNLIMITED]
    return min(known) if known else None


_FILES = ("memory.max", "memory.limit_in_bytes")


def _upwards(folder: Path, root: Path) -> list[Path]:
    return [each for each in (folder, *folder.parents) if each == root or root in each.parents]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _of_process(name: str) -> int | None:
    soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    return None if soft == resource.RLIM_INFINITY else soft
