"""Where memory levels are: a directory of this user's own on a tmpfs, swept of what killed processes have left.

A level there belongs to the processes that have it open. The last one to close it removes it; after a crash it is
taken over, with what is whole in it, by the next process that wants the same data, or else removed by the next that
wants any.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from datacache import files
from datacache.errors import NoSpaceError

DIRECTORY = Path("/dev/shm")
SLAB, LMDB = ".slab", ".lmdb"  # endings of a level's name: a file, and a directory with its mark `use`


def directory(memory_dir: str | os.PathLike = DIRECTORY) -> Path:
    """Where this user's memory levels are."""
    return Path(memory_dir) / f"datacache-{os.getuid()}"


def make(directory: Path) -> None:
    """Makes the directory of memory levels, where it is missing, for this user alone.

    Raises:
        PermissionError: where it belongs to another user.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise PermissionError(f"{directory} belongs to another user: remove it, or choose another memory_dir.")


def mark(path: Path) -> Path:
    """The file that is marked as in use while a level is open: see `files.is_in_use`."""
    return path / "use" if path.suffix == LMDB else path


def sweep(directory: Path, keep: Path | None = None) -> list[Path]:
    """Removes levels that nobody has open; the caller holds the directory's lock. Returns those in use."""
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
    """Removes a level that nobody has open; the caller holds the directory's lock."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def no_room(code: int, directory: Path, wanted: int) -> NoSpaceError:
    """What is raised where a device has not as many bytes as are wanted."""
    device = os.statvfs(directory)
    return NoSpaceError(
        code,
        f"{directory} has no room for the memory level: {wanted:,} bytes were asked for, "
        f"{device.f_bavail * device.f_frsize:,} of {device.f_blocks * device.f_frsize:,} are free. Pass a smaller "
        "memory_bytes, or enlarge the device (docker run --shm-size=..., or mount -o remount,size=... /dev/shm)",
    )
