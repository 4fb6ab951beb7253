"""Files that get their names only when they are complete and on the disk, and their checksums."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any, BinaryIO

_CHUNK = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)  # what some network file systems return for a folder


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a file to write (and read), which replaces `path` at the end, when all of it is on the disk.

    Missing folders are created. If anything fails, `path` stays as it was, and no other file is left behind.

    Raises:
        OSError: if it cannot be written; the message names the file.
    """
    path = pathlib.Path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with _naming(path):
        make_folder(path.parent)
        try:
            with open(temporary, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def of_rank(path: str | os.PathLike, rank: int, ranks: int) -> pathlib.Path:
    """The name of a rank's own file that goes with a file of this name."""
    return pathlib.Path(f"{os.fspath(path)}.rank{rank}of{ranks}")


@contextlib.contextmanager
def _naming(path: pathlib.Path) -> Iterator[None]:
    """Adds the name of the file to the error of a full disk, which the system leaves out."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        told = f"{path} could not be written: {error.strerror}. Free space there, or choose another directory"
        raise OSError(error.errno, told) from error


def make_folder(folder: pathlib.Path) -> None:
    """Creates a folder and those above it, and syncs their names to the disk; does nothing if it exists."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: pathlib.Path) -> None:
    """Syncs the names in a folder to the disk, if its file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


def sha256(path: str | os.PathLike) -> str:
    """The SHA-256 of a file; raises OSError if it cannot be read."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_start(file: BinaryIO, length: int) -> Any:
    """The SHA-256 of a file's first bytes, to which more can be added."""
    file.seek(0)
    digest = hashlib.sha256()
    while length > 0 and (chunk := file.read(min(_CHUNK, length))):
        digest.update(chunk)
        length -= len(chunk)
    return digest
