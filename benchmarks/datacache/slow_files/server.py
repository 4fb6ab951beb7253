"""The file server: a read-only passthrough by FUSE, in one thread, behind a slow link.

The kernel may cache what an NFS client does: attributes and names for 3 seconds (acregmin), data as long as a file is
open. An open is an operation of its own, as an NFS client asks the server at each open whether the file is unchanged.
The kernel's cached data of the file are dropped then: a data set larger than the client's memory would not be cached
the next time either. Nothing is written, so a file costs one operation to be found, one to be opened, and then the
reads. Reads go through the page cache with its read-ahead, not direct_io, as they do on a mounted network file system.
Releasing costs nothing: nobody waits for it.

An NFS client looks up several names of a directory at the same time. With FUSE a kernel does so only if the server asks
for it, which libfuse 3.14 does not: the kernel holds a lock on the directory, so lookups of 2 ms would be limited to
500 per second. So a lookup is answered at once, with attributes that have expired. The kernel then asks for the
attributes, without the lock; there the lookup is counted and has its latency.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pyfuse3
import trio

from benchmarks.datacache.slow_files.link import Link

COUNTERS = "user.slow_files"  # extended attribute of the root: what has been counted so far
KEPT_SECONDS = 3.0  # names and attributes
_TASKS = 256  # operations that are taken from the kernel, most of them to wait


class Passthrough(pyfuse3.Operations):
    """The files below a directory, which must not change meanwhile."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, source: Path, link: Link):
        """Takes the directory and what each operation goes through."""
        super().__init__()
        self._link = link
        self._paths = {pyfuse3.ROOT_INODE: str(source)}
        self._numbers = {str(source): pyfuse3.ROOT_INODE}  # never forgotten: a benchmark's tree is small
        self._directories: dict[int, list[str]] = {}
        self._looked_up: set[int] = set()  # whose lookup has been answered, but not yet paid for

    async def lookup(self, parent_inode, name, ctx=None):
        path = os.path.join(self._paths[parent_inode], os.fsdecode(name))
        if not os.path.lexists(path):
            async with self._link.operation("lookup"):
                raise pyfuse3.FUSEError(errno.ENOENT)
        entry = self._attributes(path)
        entry.attr_timeout = 0.0
        self._looked_up.add(entry.st_ino)
        return entry

    async def getattr(self, inode, ctx=None):
        if inode == pyfuse3.ROOT_INODE:  # or to ask for the counters would be counted
            return self._attributes(self._paths[inode])
        kind = "lookup" if inode in self._looked_up else "getattr"
        self._looked_up.discard(inode)
        async with self._link.operation(kind):
            return self._attributes(self._paths[inode])

    async def readlink(self, inode, ctx):
        async with self._link.operation("readlink"):
            return os.fsencode(_asked(os.readlink, self._paths[inode]))

    async def open(self, inode, flags, ctx):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise pyfuse3.FUSEError(errno.EROFS)
        async with self._link.operation("open"):
            descriptor = _asked(os.open, self._paths[inode], os.O_RDONLY | os.O_CLOEXEC)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(descriptor), keep_cache=False)

    async def read(self, fh, off, size):
        async with self._link.operation("read"):
            data = _asked(os.pread, fh, size, off)
            await self._link.send(len(data))
            return data

    async def release(self, fh):
        os.close(fh)

    async def opendir(self, inode, ctx):
        async with self._link.operation("opendir"):
            self._directories[inode] = sorted(_asked(os.listdir, self._paths[inode]))
        return inode

    async def readdir(self, fh, start_id, token):
        """Names with attributes, as NFS's READDIRPLUS; an operation is one answer, with as many as the kernel takes."""
        async with self._link.operation("readdir"):
            names = self._directories[fh]
            for number in range(start_id, len(names)):
                attributes = self._attributes(os.path.join(self._paths[fh], names[number]))
                if not pyfuse3.readdir_reply(token, os.fsencode(names[number]), attributes, number + 1):
                    return

    async def statfs(self, ctx):
        async with self._link.operation("statfs"):
            device = _asked(os.statvfs, self._paths[pyfuse3.ROOT_INODE])
        answer = pyfuse3.StatvfsData()
        for name in ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail"):
            setattr(answer, f"f_{name}", getattr(device, f"f_{name}"))
        return answer

    async def getxattr(self, inode, name, ctx):
        if inode == pyfuse3.ROOT_INODE and os.fsdecode(name) == COUNTERS:
            return self._link.counted()
        raise pyfuse3.FUSEError(errno.ENODATA)  # no extended attributes, and the kernel is not made to ask a server

    def _attributes(self, path: str) -> pyfuse3.EntryAttributes:
        status = _asked(os.lstat, path)
        entry = pyfuse3.EntryAttributes()
        for name in ("mode", "nlink", "uid", "gid", "rdev", "size", "blocks", "blksize"):
            setattr(entry, f"st_{name}", getattr(status, f"st_{name}"))
        for name in ("atime_ns", "mtime_ns", "ctime_ns"):
            setattr(entry, f"st_{name}", getattr(status, f"st_{name}"))
        entry.st_mode &= ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
        entry.st_ino = self._number(path)
        entry.attr_timeout = entry.entry_timeout = KEPT_SECONDS
        return entry

    def _number(self, path: str) -> int:
        if path not in self._numbers:
            number = len(self._numbers) + pyfuse3.ROOT_INODE
            self._numbers[path], self._paths[number] = number, path
        return self._numbers[path]


def _asked(function: Callable, *arguments):
    try:
        return function(*arguments)
    except OSError as error:
        raise pyfuse3.FUSEError(error.errno or errno.EIO) from None


def serve(source: Path, mount: Path, link: Link, until_closed: bool, ready: Callable[[], None]) -> None:
    """Mounts and serves until it is unmounted, or SIGTERM, SIGINT or SIGHUP comes; then it is unmounted.

    Args:
        source: directory that is shown.
        mount: where; an empty directory.
        link: what operations go through.
        until_closed: stop also when standard input is at its end, that is, when whoever started this is no more.
        ready: called once the file system is mounted.

    Raises:
        RuntimeError: if it cannot be mounted.
    """
    options = {*pyfuse3.default_options, "fsname=slow_files", "ro"}
    with _unmounted_if_killed(mount):
        with _standard_error() as written:
            try:
                pyfuse3.init(Passthrough(source, link), str(mount), options)
            except RuntimeError as error:
                written.seek(0)
                raise RuntimeError(f"{mount} cannot be mounted: {written.read().decode().strip() or error}") from None
        try:
            trio.run(_serve, until_closed, ready)
        finally:
            pyfuse3.close(unmount=True)


@contextlib.contextmanager
def _unmounted_if_killed(mount: Path) -> Iterator[None]:
    """Starts a process that waits for the end of this one and unmounts, in case it is killed.

    libfuse's own auto_unmount looks once whether nobody serves the mount any more. A process that is dying closes its
    files one by one, so that the answer may still be that it is served, or is about to be aborted, and the mount stays.
    """
    guard = subprocess.Popen(
        ["sh", "-c", 'read _; exec fusermount3 -u -q -z "$0"', str(mount)],
        stdin=subprocess.PIPE,  # at its end when this process is no more
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.kill()  # first: the mount is gone, and another may have its place soon
        guard.communicate()


@contextlib.contextmanager
def _standard_error() -> Iterator[IO[bytes]]:
    """Redirects the standard error of this process, and of those started meanwhile, to a file."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            os.dup2(kept, 2)
            os.close(kept)


async def _serve(until_closed: bool, ready: Callable[[], None]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_signals, nursery.cancel_scope)
        if until_closed:
            nursery.start_soon(_stop_when_closed, nursery.cancel_scope)
        ready()
        await pyfuse3.main(max_tasks=_TASKS)
        nursery.cancel_scope.cancel()


async def _stop_on_signals(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for _ in signals:
            scope.cancel()


async def _stop_when_closed(scope: trio.CancelScope) -> None:
    while True:
        await trio.lowlevel.wait_readable(sys.stdin)
        if not os.read(sys.stdin.fileno(), 4096):
            scope.cancel()
            return
