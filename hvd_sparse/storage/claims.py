"""A job's claim to a directory that no other job may write into meanwhile.

It is a lock of the file system on a file in the directory, so that it ends with the process that holds it, however that
ends, and nothing has to be removed by hand. On another host than the holder's, a network file system may notice the
end of a host only after a while. What holds it is also written into the file, for the message.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import json
import logging
import os
import pathlib
import socket
import time
from typing import Any

from hvd_sparse.storage import files

_log = logging.getLogger(__name__)
NAME = "claim.json"
LEASE = 120.0  # seconds after which a network file system has given up the locks of a host that is gone
_POLL = 1.0
_TAKEN = (errno.EACCES, errno.EAGAIN)
_held: dict[str, int] = {}  # the descriptors of this process's claims, by directory: closing one would end its lock


class ClaimedError(OSError):
    """Another job writes into a directory."""


def take(directory: str | os.PathLike) -> None:
    """Claims a directory for this process, until it ends or calls `release`; does nothing if it has the claim.

    A claim that is held on another host is waited for, for `LEASE` seconds. Where the file system has no locks, nothing
    is claimed.

    Raises:
        ClaimedError: if another process has the claim.
        OSError: if the directory cannot be written.
    """
    place = os.path.realpath(directory)
    if place in _held:
        return
    files.make_folder(pathlib.Path(place))
    while place not in _held:
        descriptor = os.open(os.path.join(place, NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            is_locked = _locked(descriptor, place)
            if not is_locked or _is_there(descriptor, place):
                _held[place] = descriptor
        finally:
            if place not in _held:
                os.close(descriptor)
    if is_locked:
        with contextlib.suppress(OSError):  # the disk may be full; the lock is what counts
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_own()).encode(), 0)


@atexit.register
def release_all() -> None:
    """Gives up all claims of this process, as when it ends."""
    for place in list(_held):
        release(place)


def release(directory: str | os.PathLike) -> None:
    """Gives up the claim to a directory, whose file goes; does nothing if this process does not have it."""
    place = os.path.realpath(directory)
    descriptor = _held.pop(place, None)
    if descriptor is None:
        return
    with contextlib.suppress(OSError):  # the directory may be gone
        if _is_there(descriptor, place):
            os.unlink(os.path.join(place, NAME))
    os.close(descriptor)


def _is_there(descriptor: int, place: str) -> bool:
    """Whether the file of a descriptor is still the one in the directory; whoever gives up a claim removes it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(os.path.join(place, NAME)))
    except FileNotFoundError:
        return False


def _locked(descriptor: int, place: str) -> bool:
    """Waits for the lock as long as it may be that of a host that is gone; returns False if there are no locks."""
    deadline = time.monotonic() + LEASE
    waits = False
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _TAKEN:
                return False
        holder = _read(descriptor)
        if holder.get("host") == socket.gethostname() or time.monotonic() > deadline:
            raise ClaimedError(
                errno.EBUSY,
                f"Another job saves its checkpoints in {place}: process {holder.get('process', 'unknown')} on host "
                f"{holder.get('host', 'unknown')}, since {holder.get('since', 'an unknown time')}. Give this job a "
                "directory of its own, or end the other one",
            )
        if not waits:
            waits = True
            _log.warning(
                "%s is claimed by a job on host %s; waiting up to %g s, in case that host is gone.",
                place,
                holder.get("host", "unknown"),
                LEASE,
            )
        time.sleep(_POLL)


def _own() -> dict[str, Any]:
    return {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}


def _read(descriptor: int) -> dict[str, Any]:
    """What the holder has written; nothing if it is just about to."""
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
