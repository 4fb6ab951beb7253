"""Where samples come from: the role `Source` and its members.

A source is listed once; after that it is only asked for the bytes of single samples. A file that has changed since it
was listed is an error when it is read, and `changes` finds all such files by their sizes and times.
"""

from __future__ import annotations

import abc
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datacache import files, tfrecord
from datacache.errors import SourceChangedError
from datacache.listing import NO_LABEL, Listing

Progress = Callable[[int, int | None], None]  # (done, total if known)
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff")
_REMEDY = "restore the file, or list the source again with `python -m datacache verify --relist`."


class Source(abc.ABC):
    """Samples by index.

    A new member defines `identity`, `scan` and `read`, and gets a row in the table of tests/datacache/members.py.
    """

    @property
    @abc.abstractmethod
    def identity(self) -> dict[str, Any]:
        """Kind and arguments, JSON-serialisable: two sources with the same identity are the same place."""

    @property
    def doubtful_identity(self) -> dict[str, Any] | None:
        """The identity that earlier versions gave to this place and to others, so that what they kept is not used."""
        return None

    @abc.abstractmethod
    def scan(self, progress: Progress | None = None) -> Listing:
        """Lists everything: the only time that the source is asked about each file.

        Raises:
            FileNotFoundError, NotADirectoryError: if it does not exist.
            ValueError: if it has no samples.
        """

    @abc.abstractmethod
    def read(self, listing: Listing, index: int) -> bytes:
        """The bytes of a sample.

        Raises:
            SourceChangedError: if its file has changed since it was listed, or changes while it is read.
            DamagedFileError: if the file violates its format.
        """

    def describe(self, listing: Listing, index: int) -> str:
        """What to call a sample in a message."""
        return f"sample {index}"

    def key(self, listing: Listing, index: int) -> Any:
        """What a decode function gets as the name of a sample: here its index."""
        return index

    def changes(self, listing: Listing, progress: Progress | None = None) -> Iterator[str]:
        """Sentences about what has changed since the listing."""
        return iter(())


class FilesBelow(Source):
    """Samples in files below a directory."""

    def __init__(self, path: str | os.PathLike):
        files.refuse_address(path, "a directory", "mount it, or pass `Indexed` a function that reads from there")
        self._root = Path(path).absolute()  # as spelled, which an automount may need
        self._place = os.path.realpath(self._root)  # the same for all spellings

    def describe(self, listing: Listing, index: int) -> str:
        return f"sample {index} ({self._path(listing, int(listing.file_of[index]))})"

    def key(self, listing: Listing, index: int) -> Any:
        """The path of the file, relative to the directory."""
        return listing.name(int(listing.file_of[index]))

    def changes(self, listing: Listing, progress: Progress | None = None) -> Iterator[str]:
        """Checks size and time of each listed file, and lists the names again to find new ones."""
        listed = set()
        for file in range(listing.file_count):
            name = listing.name(file)
            listed.add(name)
            complaint = self._complaint(listing, file)
            if complaint:
                yield complaint
            if progress:
                progress(file + 1, listing.file_count)
        for name in self._names():
            if name not in listed:
                yield f"{self._root / name} is new."

    def _complaint(self, listing: Listing, file: int) -> str | None:
        path = self._path(listing, file)
        try:
            return _difference(path, os.stat(path), listing, file)
        except FileNotFoundError:
            return f"{path} no longer exists."
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})."

    @abc.abstractmethod
    def _names(self) -> Sequence[str]:
        """Paths of all files of the source, relative to its root, in order."""

    def _matching(self, pattern: str, what: str) -> list[str]:
        """Paths of all files that match a pattern, relative to the root, in order; `what` the directory should be."""
        if not self._root.is_dir():
            raise NotADirectoryError(f"Expected {what}, got {self._root}.")
        with files.reading(self._root):
            os.scandir(self._root).close()  # a folder that may not be read looks empty to `glob`
        found = (path for path in self._root.glob(pattern) if _is_no_folder(path))
        return sorted(str(path.relative_to(self._root)) for path in found)

    def _statuses(self, names: Sequence[str], progress: Progress | None = None) -> list[os.stat_result]:
        """The status of each of these, which must be files."""
        statuses: list[os.stat_result] = []
        for name in names:
            with files.reading(self._root / name):
                statuses.append(os.stat(self._root / name))
            _require_file(self._root / name, statuses[-1])
            if progress:
                progress(len(statuses), len(names))
        return statuses

    def _path(self, listing: Listing, file: int) -> Path:
        return self._root / listing.name(file)

    def _read_from(self, listing: Listing, file: int, offset: int, length: int) -> bytes:
        """Bytes of a file, checked before and after the read to be as listed."""
        path = self._path(listing, file)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # not to wait for a pipe's writer
        except FileNotFoundError:
            raise SourceChangedError(f"{path} was listed, but no longer exists: {_REMEDY}") from None
        try:
            _require_unchanged(path, descriptor, listing, file)
            data = _read_all(descriptor, offset, length)
            _require_unchanged(path, descriptor, listing, file)
        finally:
            os.close(descriptor)
        if len(data) != length:
            raise SourceChangedError(
                f"{path} ended after {offset + len(data)} bytes, {offset + length} were expected: {_REMEDY}"
            )
        return data


class ImageFolder(FilesBelow):
    """A directory with a folder for each class, which contains the images of the class, also in subfolders.

    Labels are the numbers of the classes: in the order of their names, or as given by `classes`. Samples are in the
    order of their paths.
    """

    def __init__(self, path: str | os.PathLike, suffixes: Sequence[str] = IMAGES, classes: Sequence[str] | None = None):
        """Takes the directory, the files that count, and the classes.

        Args:
            path: of the directory.
            suffixes: endings of the files that count, in lower case; the case of file names does not matter.
            classes: names of the class folders, in the order of their numbers, like Keras's `class_names`. A class may
                then have no images here, or no folder, and keeps its number. By default the folders, in the order of
                their names, each of which must have an image: otherwise the numbers of later classes would depend on
                it.

        Raises:
            ValueError: if suffixes are not endings, or classes is not a list of different folder names.
        """
        super().__init__(path)
        if isinstance(suffixes, str) or not suffixes or not all(each.startswith(".") for each in suffixes):
            raise ValueError(f"Expected suffixes such as ('.jpg', '.png'), got {suffixes!r}.")
        self._suffixes = tuple(each.lower() for each in suffixes)
        self._classes = None if classes is None else _class_names(classes)

    @property
    def identity(self) -> dict[str, Any]:
        told = {"kind": "ImageFolder", "path": self._place, "suffixes": list(self._suffixes)}
        return told if self._classes is None else {**told, "classes": list(self._classes)}

    def scan(self, progress: Progress | None = None) -> Listing:
        """Lists all images; as `Source.scan`.

        Raises:
            ValueError: also if a folder has no image and classes are not given, if images are in a folder that is not
                among the classes, or if something with an image's name is not a file.
        """
        names, sizes, times = [], [], []
        for entry in self._entries():
            with files.reading(entry.path):
                status = entry.stat()
            _require_file(entry.path, status)
            names.append(os.path.relpath(entry.path, self._root))
            sizes.append(status.st_size)
            times.append(status.st_mtime_ns)
            if progress:
                progress(len(names), None)
        if not names:
            raise ValueError(
                f"{self._root} has no file ending in {', '.join(self._suffixes)} inside a class folder: expected "
                "CLASS/NAME.jpg; for other endings pass suffixes=(...)."
            )
        folders = [name.partition(os.sep)[0] for name in names]
        classes = self._numbered(set(folders))
        number = {name: label for label, name in enumerate(classes)}
        labels = [number[folder] for folder in folders]
        samples = np.stack([np.arange(len(names)), np.zeros(len(names)), sizes, labels], axis=1).astype(np.int64)
        return Listing.build(self.identity, names, sizes, times, samples, classes)

    def read(self, listing: Listing, index: int) -> bytes:
        return self._read_from(listing, int(listing.file_of[index]), 0, int(listing.lengths[index]))

    def changes(self, listing: Listing, progress: Progress | None = None) -> Iterator[str]:
        yield from super().changes(listing, progress)
        if self._classes is None:
            for name in self._folders():
                if name not in listing.classes:
                    yield f"{self._root / name} has no listed image, and the classes after it are numbered without it."

    def _folders(self) -> list[str]:
        return [entry.name for entry in _sorted_entries(self._root) if _is_folder(entry)]

    def _numbered(self, filled: set[str]) -> Sequence[str]:
        """The classes in the order of their numbers; `filled` are the folders that have images."""
        if self._classes is None:
            folders = self._folders()
            empty = [name for name in folders if name not in filled]
            if empty:
                raise ValueError(
                    f"{self._root} has class folders without a file ending in {', '.join(self._suffixes)}: "
                    f"{_few(empty)}. Whether they count decides the numbers of the classes after them: pass "
                    "classes=[...], the names of all classes in order (--classes for the commands), or remove them."
                )
            return folders
        unknown = sorted(filled.difference(self._classes))
        if unknown:
            raise ValueError(
                f"{self._root} has images in folders that are not among classes=[{_few(self._classes)}]: "
                f"{_few(unknown)}. Add them there, or remove them."
            )
        return self._classes

    def _names(self) -> Sequence[str]:
        return [os.path.relpath(entry.path, self._root) for entry in self._entries()]

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        for entry in _sorted_entries(self._root):
            if _is_folder(entry):
                yield from self._files_below(entry.path, (os.path.realpath(self._root),))

    def _files_below(self, path: str, above: tuple[str, ...]) -> Iterator[os.DirEntry[str]]:
        """The files in a folder that is below these, by their real paths, and in its subfolders."""
        place = os.path.realpath(path)
        if place in above:
            raise OSError(
                errno.ELOOP, f"{path} is a link to a folder that contains it ({place}), so it has no end: remove it"
            )
        for entry in _sorted_entries(path):
            if _is_folder(entry):
                yield from self._files_below(entry.path, (*above, place))
            elif entry.name.lower().endswith(self._suffixes):
                yield entry


class TFRecords(FilesBelow):
    """The records of uncompressed TFRecord files, without labels: what decoding returns is all there is."""

    def __init__(self, path: str | os.PathLike, pattern: str = "*.tfrecord*"):
        """Takes a directory and the pattern of its files' names; samples are in the order of names, then records."""
        super().__init__(path)
        self._pattern = pattern

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "TFRecords", "path": self._place, "pattern": self._pattern}

    def scan(self, progress: Progress | None = None) -> Listing:
        """Lists files and, by their headers, records; as `Source.scan`.

        Raises:
            DamagedFileError: if a file is not in the format.
            ValueError: also if something with a file's name is not a file.
        """
        names, samples = self._names(), []
        statuses = self._statuses(names)
        for number, (name, status) in enumerate(zip(names, statuses, strict=True)):
            with files.reading(self._root / name), open(self._root / name, "rb", buffering=0) as file:
                places = tfrecord.index(file, str(self._root / name), status.st_size)
                samples += [(number, place.offset, place.length, NO_LABEL) for place in places]
            if progress:
                progress(number + 1, len(names))
        if not samples:
            raise ValueError(f"{self._root} has no record in files named {self._pattern}: pass another pattern=.")
        sizes, times = [each.st_size for each in statuses], [each.st_mtime_ns for each in statuses]
        return Listing.build(self.identity, names, sizes, times, samples)

    def read(self, listing: Listing, index: int) -> bytes:
        file, offset, length = (int(column[index]) for column in (listing.file_of, listing.offsets, listing.lengths))
        framed = self._read_from(listing, file, offset, length + tfrecord.FOOTER.size)
        tfrecord.check(framed[:length], framed[length:], str(self._path(listing, file)), offset)
        return framed[:length]

    def describe(self, listing: Listing, index: int) -> str:
        return f"{super().describe(listing, index)[:-1]}, byte {int(listing.offsets[index])})"

    def key(self, listing: Listing, index: int) -> Any:
        """The path of the file, relative to the directory, and where the record begins in it, in bytes."""
        return super().key(listing, index), int(listing.offsets[index])

    def _names(self) -> Sequence[str]:
        return self._matching(self._pattern, "a directory of TFRecord files")


def _class_names(classes: Sequence[str]) -> tuple[str, ...]:
    names = () if isinstance(classes, str) else tuple(classes)
    if not names or len(set(names)) < len(names) or any(not isinstance(name, str) or os.sep in name for name in names):
        raise ValueError(f"Expected classes as a list of distinct folder names, got {classes!r}.")
    return names


def _few(names: Sequence[str]) -> str:
    """Names for a message; only the first ones if there are many."""
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _require_file(path: str | os.PathLike, status: os.stat_result) -> None:
    """Raises an error for what cannot be read as a file, such as a pipe, which would block."""
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"Expected a file, got {_kind(status.st_mode)}: {os.fspath(path)}. Remove it.")


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


def _require_unchanged(path: Path, descriptor: int, listing: Listing, file: int) -> None:
    complaint = _difference(path, os.fstat(descriptor), listing, file)
    if complaint:
        raise SourceChangedError(f"{complaint} To continue, {_REMEDY}")


def _difference(path: Path, status: os.stat_result, listing: Listing, file: int) -> str | None:
    size, time = int(listing.sizes[file]), int(listing.times[file])
    if not stat.S_ISREG(status.st_mode):
        return f"{path} has changed since it was listed: it is {_kind(status.st_mode)}."
    if (status.st_size, status.st_mtime_ns) == (size, time):
        return None
    return (
        f"{path} has changed since it was listed: expected {size} bytes of time {time / 1e9:.3f}, got "
        f"{status.st_size} bytes of time {status.st_mtime_ns / 1e9:.3f}."
    )
