"""How many bytes may still be taken: of a device, of memory, of addresses, and for a file.

Shared memory that exceeds the limit of a control group is no error of a call: the kernel kills the process. So the
smallest limit is looked up before anything is reserved. What the kernel can give back, such as cached files, counts as
free.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from datacache import files

PROC = Path("/proc")
_IN_MEMORY = {"tmpfs", "ramfs"}  # file systems whose files are in memory
_ASIDE = 64 << 20  # of memory, for the process itself while it opens its levels
_ALIGNMENT = 4 << 20  # of addresses, to begin at a huge page
_UNLIMITED = 1 << 60  # the first version's control groups write a number near 2**63 for no limit


class Room(NamedTuple):
    """What may still be taken.

    Attributes:
        bytes: not negative.
        of: what the limit is, for a message.
        remedy: how to raise it.
    """

    bytes: int
    of: str
    remedy: str


def for_memory(directory: Path, held: int = 0, proc: Path = PROC) -> list[Room]:
    """The rooms for a file in a directory that this process maps too; the smallest one counts.

    Args:
        directory: where the file will be.
        held: bytes that the file has already.
        proc: where the kernel tells about processes.
    """
    rooms = [_device(directory)]
    if files.file_system(directory) in _IN_MEMORY:
        rooms += [*_machine(proc), *of_groups(proc / "self")]
    rooms = [room._replace(bytes=room.bytes + held) for room in rooms]
    return [*rooms, *of_a_file(), *of_addresses(proc)]


def of_a_file() -> list[Room]:
    """The room for a whole file of this process; none if it is not limited."""
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size == resource.RLIM_INFINITY:
        return []
    return [Room(size, "the limit of a file's size", "raise that limit (ulimit -f)")]


def of_addresses(proc: Path = PROC) -> list[Room]:
    """The room for what this process maps; none if it is not limited."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed == resource.RLIM_INFINITY:
        return []
    used = int((proc / "self" / "statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    left = max(0, allowed - used - _ALIGNMENT)
    return [Room(left, "the limit of the address space", "raise that limit (ulimit -v)")]


def of_groups(process: Path = PROC / "self") -> Iterator[Room]:
    """The rooms of the control groups that a process is in, of either version, and of those above them.

    Args:
        process: the directory in which the kernel describes it.
    """
    mounts = list(_mounts(process / "mountinfo"))
    for line in _text(process / "cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        kind = "cgroup2" if controllers == "" else "cgroup"
        if kind == "cgroup" and "memory" not in controllers.split(","):
            continue
        for mount in mounts:
            if mount.kind == kind:
                yield from _up_to(mount, group)


class _Mount(NamedTuple):
    """Where control groups that limit memory are shown: those below `group` at `place`."""

    kind: str
    group: str
    place: Path


def _mounts(path: Path) -> Iterator[_Mount]:
    for line in _text(path).splitlines():
        mounted, _, described = line.partition(" - ")
        group, place = mounted.split(" ")[3:5]
        kind, _, options = described.split(" ")[:3]
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            yield _Mount(kind, group, Path(place.encode().decode("unicode_escape")))


def _up_to(mount: _Mount, group: str) -> Iterator[Room]:
    """The rooms of a group and of those above it, as far as they are shown; a container sees its own as the root."""
    inside = os.path.relpath(group, mount.group)
    place = mount.place if inside.startswith("..") else mount.place / inside
    while True:
        room = _of_group(place, mount.kind)
        if room is not None:
            yield room
        if place == mount.place:
            return
        place = place.parent


def _of_group(place: Path, kind: str) -> Room | None:
    limit, used = ("memory.max", "memory.current")
    if kind == "cgroup":
        limit, used = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    allowed, taken = (_text(place / name).strip() for name in (limit, used))
    if not allowed.isdigit() or not taken.isdigit() or int(allowed) >= _UNLIMITED:
        return None
    statistics = dict(line.split(" ", 1) for line in _text(place / "memory.stat").splitlines())
    cached = sum(_number(statistics, name, kind) for name in ("active_file", "inactive_file"))
    left = max(0, int(allowed) - int(taken) + cached - _ASIDE)
    return Room(
        left, f"the memory limit of the control group {place}", "raise that limit (docker run --memory, sbatch --mem)"
    )


def _number(statistics: dict[str, str], name: str, kind: str) -> int:
    """A number of a group and those below it, which the first version tells apart from the group's own."""
    return int(statistics.get(f"total_{name}" if kind == "cgroup" else name, 0))


def _machine(proc: Path) -> Iterator[Room]:
    for line in _text(proc / "meminfo").splitlines():
        name, _, number = line.partition(":")
        if name == "MemAvailable":
            left = max(0, int(number.split()[0]) * 1024 - _ASIDE)
            yield Room(left, "the memory of this machine", "end what else takes memory")


def _device(directory: Path) -> Room:
    device = os.statvfs(directory)
    if not device.f_blocks:  # a tmpfs without a limit
        return Room(_UNLIMITED, str(directory), "")
    remedy = "enlarge the device (docker run --shm-size=..., or mount -o remount,size=... /dev/shm)"
    return Room(device.f_bavail * device.f_frsize, f"the device of {directory}", remedy)


def _text(path: Path) -> str:
    """The content of a file of the kernel; "" if this machine does not have it."""
    try:
        return path.read_text()
    except OSError:
        return ""
