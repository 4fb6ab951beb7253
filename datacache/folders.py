"""Where the files of a source are: the role `Folder`, and its member for the file systems of this machine."""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from datacache import files
from datacache.errors import SourceChangedError

REMEDY = "restore the file, or list the source again with `python -m datacache verify --relist`."


class Found(NamedTuple):
    """A file as it is, or was when it was listed.

    Attributes:
        name: its path below the folder.
        size: in bytes.
        stamp: int64, when it was last written, in nanoseconds; below 0 a digest of the version that a store names.
    """

    name: str
    size: int
    stamp: int


class Folder(abc.ABC):
    """A directory of files, also below it, whose names are relative to it.

    A new member runs in tests/datacache/test_stores.py, on the stores of which tests/datacache/stores.py has a table.

    Attributes:
        place: the same for all ways to spell its path.
    """

    place: str

    @abc.abstractmethod
    def shown(self, name: str = "") -> str:
        """The path of a file, or of the folder itself, for messages."""

    @abc.abstractmethod
    def class_folders(self) -> list[str]:
        """The names of the folders in it, in order.

        Raises:
            FileNotFoundError, NotADirectoryError: if it does not exist.
        """

    @abc.abstractmethod
    def in_classes(self, suffixes: tuple[str, ...]) -> Iterator[str]:
        """The files below those folders whose lower-case names end so, in the order of the parts of their paths."""

    @abc.abstractmethod
    def matching(self, pattern: str, what: str) -> list[str]:
        """The files that match a pattern of `pathlib.Path.glob`, in the order of their paths; `what` the folder is."""

    @abc.abstractmethod
    def found(self, name: str) -> Found:
        """A file as it is.

        Raises:
            ValueError: if it cannot be read as a file, such as a pipe, which would block.
        """

    @abc.abstractmethod
    def complaint(self, listed: Found) -> str | None:
        """A sentence about how a file differs from what was listed; None if it does not."""

    @abc.abstractmethod
    def read(self, listed: Found, offset: int, length: int) -> bytes:
        """Bytes of a file that is as it was listed.

        Raises:
            SourceChangedError: if it is not.
        """

    @abc.abstractmethod
    def opened(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """A file to look through."""


class LocalFolder(Folder):
    """A directory on a file system that is mounted."""

    def __init__(self, path: str | os.PathLike):
        """Takes its path."""
        self._root = Path(path).absolute()  # as spelled, which an automount may need
        self.place = os.path.realpath(self._root)

    def shown(self, name: str = "") -> str:
        return str(self._root / name)

    def class_folders(self) -> list[str]:
        return [entry.name for entry in _sorted_entries(self._root) if _is_folder(entry)]

    def in_classes(self, suffixes: tuple[str, ...]) -> Iterator[str]:
        for entry in _sorted_entries(self._root):
            if _is_folder(entry):
                yield from self._files_below(entry.path, (os.path.realpath(self._root),), suffixes)

    def matching(self, pattern: str, what: str) -> list[str]:
        if not self._root.is_dir():
            raise NotADirectoryError(f"Expected {what}, got {self._root}.")
        with files.reading(self._root):
            os.scandir(self._root).close()  # a folder that may not be read looks empty to `glob`
        found = (path for path in self._root.glob(pattern) if _is_no_folder(path))
        return sorted(str(path.relative_to(self._root)) for path in found)

    def found(self, name: str) -> Found:
        path = self._root / name
        with files.reading(path):
            status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"Expected a file, got {_kind(status.st_mode)}: {path}. Remove it.")
        return Found(name, status.st_size, status.st_mtime_ns)

    def complaint(self, listed: Found) -> str | None:
        path = self._root / listed.name
        try:
            return _difference(path, os.stat(path), listed)
        except FileNotFoundError:
            return f"{path} no longer exists."
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})."

    def read(self, listed: Found, offset: int, length: int) -> bytes:
        path = self._root / listed.name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # not to wait for a pipe's writer
        except FileNotFoundError:
            raise SourceChangedError(f"{path} was listed, but no longer exists: {REMEDY}") from None
        try:
            _require_unchanged(path, descriptor, listed)
            data = _read_all(descriptor, offset, length)
            _require_unchanged(path, descriptor, listed)
        finally:
            os.close(descriptor)
        require_length(str(path), offset, len(data), length)
        return data

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        with files.reading(self._root / name), open(self._root / name, "rb", buffering=0) as file:
            yield file

    def _files_below(self, path: str, above: tuple[str, ...], suffixes: tuple[str, ...]) -> Iterator[str]:
        """The files in a folder that is below these, by their real paths, and in its subfolders."""
        place = os.path.realpath(path)
        if place in above:
            raise OSError(
                errno.ELOOP, f"{path} is a link to a folder that contains it ({place}), so it has no end: remove it"
            )
        for entry in _sorted_entries(path):
            if _is_folder(entry):
                yield from self._files_below(entry.path, (*above, place), suffixes)
            elif entry.name.lower().endswith(suffixes):
                yield os.path.relpath(entry.path, self._root)


def require_length(path: str, offset: int, got: int, wanted: int) -> None:
    """Makes sure that as many bytes were read as were listed.

    Raises:
        SourceChangedError: if they were not.
    """
    if got != wanted:
        raise SourceChangedError(f"{path} ended after {offset + got} bytes, {offset + wanted} were expected: {REMEDY}")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with files.reading(entry.path):
        return entry.is_dir()


def _is_no_folder(path: Path) -> bool:
    """Whether something other than a folder is there; a link to nothing does not count."""
    try:
        with files.reading(path):
            return not stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def _sorted_entries(path: str | Path) -> list[os.DirEntry[str]]:
    with files.reading(path), os.scandir(os.fspath(path)) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _read_all(descriptor: int, offset: int, length: int) -> bytes:
    pieces = []
    while length > 0:
        piece = os.pread(descriptor, length, offset)
        if not piece:
            break
        pieces.append(piece)
        offset, length = offset + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _require_unchanged(path: Path, descriptor: int, listed: Found) -> None:
    complaint = _difference(path, os.fstat(descriptor), listed)
    if complaint:
        raise SourceChangedError(f"{complaint} To continue, {REMEDY}")


def _difference(path: Path, status: os.stat_result, listed: Found) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return f"{path} has changed since it was listed: it is {_kind(status.st_mode)}."
    if (status.st_size, status.st_mtime_ns) == (listed.size, listed.stamp):
        return None
    return (
        f"{path} has changed since it was listed: expected {listed.size} bytes of time {listed.stamp / 1e9:.3f}, got "
        f"{status.st_size} bytes of time {status.st_mtime_ns / 1e9:.3f}."
    )
