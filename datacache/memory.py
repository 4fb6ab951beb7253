"""Where memory levels are: a directory of this user's own on a tmpfs, swept of the leftovers of killed processes.

A level belongs to the processes that have it open. The last one to close it removes it. After a crash the next process
that wants the same data takes it over, with its whole records; otherwise the next process that wants any data removes
it.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from datacache import files
from datacache.errors import NoSpaceError
from datacache.limits import Room

DIRECTORY = Path("/dev/shm")
SLAB, LMDB = ".slab", ".lmdb"  # endings of a level's name: a file, and a directory with its mark `use`


def directory(memory_dir: str | os.PathLike = DIRECTORY) -> Path:
    """Where this user's memory levels are."""
    return Path(memory_dir) / f"datacache-{os.getuid()}"


def make(directory: Path) -> None:
    """Creates the directory of memory levels, if it is missing, for this user alone.

    Raises:
        PermissionError: if it belongs to another user.
    """
    files.refuse_address(directory, "memory_dir as a directory on a tmpfs", "choose one, such as /dev/shm")
    with files.accessing(f"{directory} cannot be made for the memory level"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise PermissionError(f"{directory} belongs to another user: remove it, or choose another memory_dir.")


def mark(path: Path) -> Path:
    """The file that is marked as in use while a level is open: see `files.is_in_use`."""
    return path / "use" if path.suffix == LMDB else path


def sweep(directory: Path, keep: Path | None = None) -> list[Path]:
    """Removes levels that no process has open; the caller holds the directory's lock. Returns those in use."""
    kept = []
    for path in list(directory.iterdir()):
        if path == keep or path.suffix not in (SLAB, LMDB):
            continue
        if files.is_in_use(mark(path)):
            kept.append(path)
        else:
            remove(path)
    return kept


def remove(path: Path) -> None:
    """Removes a level that no process has open; the caller holds the directory's lock."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def require_room(directory: Path, wanted: int, rooms: list[Room]) -> None:
    """Makes sure that a level of this many bytes fits.

    Raises:
        NoSpaceError: if it does not; the message tells each room that is too small.
    """
    if any(room.bytes < wanted for room in rooms):
        raise no_room(errno.ENOSPC, directory, wanted, rooms)


def no_room(code: int, directory: Path, wanted: int, rooms: list[Room]) -> NoSpaceError:
    """The error to raise if a level does not fit."""
    small = [room for room in rooms if room.bytes < wanted] or [min(rooms)]
    free = ", ".join(f"{room.bytes:,} are free within {room.of}" for room in small)
    remedies = ", or ".join(dict.fromkeys(room.remedy for room in small))
    return NoSpaceError(
        code,
        f"{directory} has no room for the memory level: {wanted:,} bytes were asked for, {free}. Pass a smaller "
        f"memory_bytes, or {remedies}",
    )
