"""Files and locks: complete files by renaming, locks that end with their process, and the file system of a path."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from datacache import waiting
from datacache.errors import NoSpaceError, UnsuitableFileSystemError

MOUNTS = Path("/proc/self/mounts")
# File systems on which a lock or a mapped page may not mean what it means on a local disk. FUSE can be anything, so it
# counts as remote, except for the members below, which only overlay directories of this machine or read its disks.
_REMOTE = {
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "davfs",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
}
_REMOTE |= {"ocfs2", "gfs2", "orangefs", "smb3", "smbfs", "virtiofs", "vboxsf", "fuse"}
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.mergerfs", "fuseblk"}
_LOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, process
_SCHEME = "[A-Za-z][A-Za-z0-9+.-]*"
_ADDRESS = re.compile(f"(?:{_SCHEME}::)*{_SCHEME}://")


@contextlib.contextmanager
def needing_room_for(path: Path) -> Iterator[None]:
    """Turns a full-disk error into a NoSpaceError that says what was to be written, and where."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NoSpaceError(
            error.errno, f"{path.parent} has no room for {path.name}: make room on that disk, or choose another"
        ) from None


_REMEDIES = {  # of errors whose cause is seldom clear from their names
    errno.EACCES: "give this user access, or run as a user who has it",
    errno.EPERM: "give this user access, or run as a user who has it",
    errno.ELOOP: "it is a loop of links: remove it, or let it point to a file",
    errno.ENOENT: "check the path, and that its file system is mounted",
    errno.ENOTDIR: "check the path",
    errno.EIO: "its disk or network failed: look at the system's log, restore the file from a copy, or remove it",
    errno.ESTALE: "its file system was mounted anew: start again",
}


def failure(what: str, error: OSError) -> OSError:
    """The error to raise in place of one of the system: of its kind, with what failed, why, and what to do.

    Args:
        what: a sentence's beginning, as "PATH cannot be read".
        error: of the system, with an errno.
    """
    remedy = _REMEDIES.get(error.errno or 0, "check its file system")
    return OSError(error.errno, f"{what} ({os.strerror(error.errno or 0)}): {remedy}")


def is_of_system(error: OSError) -> bool:
    """Whether an error comes from the operating system as it is, without words of our own."""
    return error.errno is not None and error.strerror == os.strerror(error.errno)


@contextlib.contextmanager
def accessing(what: str) -> Iterator[None]:
    """Turns the system's errors into those of `failure`; a full disk is left to `needing_room_for`."""
    try:
        yield
    except OSError as error:
        if not is_of_system(error) or error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise failure(what, error) from error


def reading(path: str | os.PathLike) -> contextlib.AbstractContextManager[None]:
    """As `accessing`, for what is read under a path."""
    return accessing(f"{os.fspath(path)} cannot be read")


def is_address(path: str | os.PathLike) -> bool:
    """Whether a path is the address of a store, such as s3://bucket/train, or of something in it (zip://...::s3://...)."""
    return _ADDRESS.match(os.fspath(path)) is not None


def refuse_address(path: str | os.PathLike, wanted: str, remedy: str) -> None:
    """Makes sure that a path is not the address of an object store, such as s3://bucket/train.

    Raises:
        ValueError: if it is.
    """
    if is_address(path):
        raise ValueError(f"Expected {wanted}, got the address {os.fspath(path)}: {remedy}.")


def write_renamed(path: Path, content: bytes) -> None:
    """Writes a file that appears under its name when it is complete and on the disk.

    Raises:
        NoSpaceError: if the disk is full.
    """
    part = path.with_name(f".{os.getpid()}-{threading.get_ident()}.{path.name}.part")
    try:
        with needing_room_for(path), open(part, "wb") as file:
            file.write(content)
        rename_whole(part, path)
    finally:
        part.unlink(missing_ok=True)


def rename_whole(part: Path, path: Path) -> None:
    """Gives a written file its name once its content is on the disk."""
    sync(part)
    part.replace(path)
    sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Writes JSON as `write_renamed` does."""
    write_renamed(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> Any:
    """The JSON in a file; None if there is no such file, or it holds no JSON."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def sync(path: Path) -> None:
    """Flushes the content of a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks a file (created if missing) or a directory, among processes and threads; waits for the lock."""
    flags = os.O_RDONLY | os.O_DIRECTORY if path.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with waiting.told(str(path), lambda: waiting.holders_of(descriptor)):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile has the file open, too
    finally:
        os.close(descriptor)


def take(path: Path, number: int) -> int | None:
    """Locks a number: a byte of a file (created empty if missing).

    Returns:
        What to close to release the lock; None if another process or thread holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0))
    except (BlockingIOError, PermissionError):  # the system may raise either
        os.close(descriptor)
        return None
    return descriptor


def share(descriptor: int) -> None:
    """Marks an open file as in use for as long as it is open: see `is_in_use`."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def is_in_use(path: Path) -> bool:
    """Whether a process has marked a file as in use. Call it under a lock that those who mark it hold too."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class IndexLocks:
    """A lock for each number, among all processes and threads of a node; a process that ends releases its own.

    A lock is one byte of a file, locked through an open file description of each thread's own.
    """

    def __init__(self, path: Path, name: Callable[[int], str] = "number {}".format):
        """Takes the file, and a function that names the thing behind a number if it is waited for long."""
        self._path, self._name = path, name
        self._own = threading.local()

    @contextlib.contextmanager
    def hold(self, index: int) -> Iterator[None]:
        """Holds a number's lock; waits for it. A thread holds one at a time."""
        descriptor = self._descriptor()
        try:
            _set_lock(descriptor, fcntl.F_WRLCK, index, wait=False)
        except (BlockingIOError, PermissionError):  # the system may raise either
            with waiting.told(self._name(index), lambda: waiting.holders_of(descriptor, index)):
                _set_lock(descriptor, fcntl.F_WRLCK, index)
        try:
            yield
        finally:
            _set_lock(descriptor, fcntl.F_UNLCK, index)

    def _descriptor(self) -> int:
        file = getattr(self._own, "file", None)
        if file is None or self._own.process != os.getpid():  # a forked child would share its parent's locks
            file = open(self._path, "ab", buffering=0)
            self._own.file, self._own.process = file, os.getpid()
        return file.fileno()


def _set_lock(descriptor: int, kind: int, index: int, wait: bool = True) -> None:
    command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
    fcntl.fcntl(descriptor, command, _LOCK.pack(kind, os.SEEK_SET, index, 1, 0))


def file_system(path: Path, mounts: Path = MOUNTS) -> str:
    """The type of the file system on which a path lies, or would lie, as the kernel names it."""
    wanted = os.path.realpath(path)
    best, kind = -1, "unknown"
    for line in mounts.read_text().splitlines():
        _, place, found = line.split(" ")[:3]
        place = place.encode().decode("unicode_escape")  # blanks are written as \040
        inside = wanted == place or wanted.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= best:  # of two mounts at one place the later is on top
            best, kind = len(place), found
    return kind


def refuse_remote(path: Path, purpose: str, mounts: Path = MOUNTS) -> None:
    """Makes sure that a directory is on this machine.

    Raises:
        UnsuitableFileSystemError: if it is on a network file system.
    """
    kind = file_system(path, mounts)
    if kind in _REMOTE or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE):
        raise UnsuitableFileSystemError(
            errno.ENOTSUP,
            f"{purpose} must be on a disk of this machine, but {path} is on a file system of type {kind}, where locks "
            "and mapped files cannot be relied on: choose a directory on a local disk, such as /tmp or /local_scratch",
        )
