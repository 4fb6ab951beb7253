"""Where samples come from: the role `Source` and its members.

A source is listed once; after that it is only asked for the bytes of single samples. A file that has changed since it
was listed is an error when it is read, and `changes` finds all such files by their sizes and times.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from datacache import files, tfrecord
from datacache.folders import Folder, Found, LocalFolder
from datacache.listing import NO_LABEL, Listing
from datacache.remote import RemoteFolder, StorageOptions

Progress = Callable[[int, int | None], None]  # (done, total if known)
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff")


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

    def opened(self, payload: bytes) -> Any:
        """What a decode function gets of a sample's bytes: here these."""
        return payload

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
    """Samples in files below a directory, or below an address of a store."""

    def __init__(self, path: str | os.PathLike, storage_options: StorageOptions = None):
        """Takes the path of a directory, or an address as s3://bucket/train and the options of its file system."""
        remote = files.is_address(path)
        if not remote and storage_options is not None:
            raise ValueError(
                f"Expected storage_options with an address only, such as s3://bucket/train, got the path {path}."
            )
        self._folder: Folder = RemoteFolder(os.fspath(path), storage_options) if remote else LocalFolder(path)

    def describe(self, listing: Listing, index: int) -> str:
        return f"sample {index} ({self._shown(listing, int(listing.file_of[index]))})"

    def key(self, listing: Listing, index: int) -> Any:
        """The path of the file, relative to the directory."""
        return listing.name(int(listing.file_of[index]))

    def changes(self, listing: Listing, progress: Progress | None = None) -> Iterator[str]:
        """Checks size and time of each listed file, and lists the names again to find new ones."""
        listed = set()
        for file in range(listing.file_count):
            known = _listed(listing, file)
            listed.add(known.name)
            complaint = self._folder.complaint(known)
            if complaint:
                yield complaint
            if progress:
                progress(file + 1, listing.file_count)
        for name in self._names():
            if name not in listed:
                yield f"{self._folder.shown(name)} is new."

    @abc.abstractmethod
    def _names(self) -> Sequence[str]:
        """Paths of all files of the source, relative to its root, in order."""

    def _found(self, names: Iterable[str], progress: Progress | None = None, total: int | None = None) -> list[Found]:
        """Each of these files as it is; `total` is their number, if known."""
        found = []
        for name in names:
            found.append(self._folder.found(name))
            if progress:
                progress(len(found), total)
        return found

    def _shown(self, listing: Listing, file: int) -> str:
        return self._folder.shown(listing.name(file))

    def _read_from(self, listing: Listing, file: int, offset: int, length: int) -> bytes:
        """Bytes of a file that is as it was listed."""
        return self._folder.read(_listed(listing, file), offset, length)


def _listed(listing: Listing, file: int) -> Found:
    return Found(listing.name(file), int(listing.sizes[file]), int(listing.times[file]))


class ImageFolder(FilesBelow):
    """A directory with a folder for each class, which contains the images of the class, also in subfolders.

    The directory may be in a store that fsspec opens.

    Labels are the numbers of the classes: in the order of their names, or as given by `classes`. Samples are in the
    order of their paths.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        suffixes: Sequence[str] = IMAGES,
        classes: Sequence[str] | None = None,
        storage_options: StorageOptions = None,
    ):
        """Takes the directory, the files that count, and the classes.

        Args:
            path: of the directory, or an address such as s3://bucket/train, for which fsspec must be installed.
            suffixes: endings of the files that count, in lower case; the case of file names does not matter.
            classes: names of the class folders, in the order of their numbers, like Keras's `class_names`. A class may
                then have no images here, or no folder, and keeps its number. By default the folders, in the order of
                their names, each of which must have an image: otherwise the numbers of later classes would depend on
                it.
            storage_options: of an address; see `RemoteFolder`.

        Raises:
            ImportError: for an address, if fsspec or its package for this store is not installed.
            ValueError: if suffixes are not endings, or classes is not a list of different folder names.
        """
        super().__init__(path, storage_options)
        if isinstance(suffixes, str) or not suffixes or not all(each.startswith(".") for each in suffixes):
            raise ValueError(f"Expected suffixes such as ('.jpg', '.png'), got {suffixes!r}.")
        self._suffixes = tuple(each.lower() for each in suffixes)
        self._classes = None if classes is None else _class_names(classes)

    @property
    def identity(self) -> dict[str, Any]:
        told = {"kind": "ImageFolder", "path": self._folder.place, "suffixes": list(self._suffixes)}
        return told if self._classes is None else {**told, "classes": list(self._classes)}

    def scan(self, progress: Progress | None = None) -> Listing:
        """Lists all images; as `Source.scan`.

        Raises:
            ValueError: also if a folder has no image and classes are not given, if images are in a folder that is not
                among the classes, or if something with an image's name is not a file.
        """
        found = self._found(self._folder.in_classes(self._suffixes), progress)
        if not found:
            raise ValueError(
                f"{self._folder.shown()} has no file ending in {', '.join(self._suffixes)} inside a class folder: "
                "expected CLASS/NAME.jpg; for other endings pass suffixes=(...)."
            )
        names, sizes, times = zip(*found, strict=True)
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
            for name in self._folder.class_folders():
                if name not in listing.classes:
                    shown = self._folder.shown(name)
                    yield f"{shown} has no listed image, and the classes after it are numbered without it."

    def _numbered(self, filled: set[str]) -> Sequence[str]:
        """The classes in the order of their numbers; `filled` are the folders that have images."""
        if self._classes is None:
            folders = self._folder.class_folders()
            empty = [name for name in folders if name not in filled]
            if empty:
                raise ValueError(
                    f"{self._folder.shown()} has class folders without a file ending in {', '.join(self._suffixes)}: "
                    f"{_few(empty)}. Whether they count decides the numbers of the classes after them: pass "
                    "classes=[...], the names of all classes in order (--classes for the commands), or remove them."
                )
            return folders
        unknown = sorted(filled.difference(self._classes))
        if unknown:
            raise ValueError(
                f"{self._folder.shown()} has images in folders that are not among classes=[{_few(self._classes)}]: "
                f"{_few(unknown)}. Add them there, or remove them."
            )
        return self._classes

    def _names(self) -> Sequence[str]:
        return list(self._folder.in_classes(self._suffixes))


class RecordsBelow(FilesBelow):
    """Samples that lie one after another in files whose names match a pattern, without labels.

    A new member defines `WHAT`, `places` and `read`.
    """

    WHAT: str  # what the files are, for messages

    def __init__(self, path: str | os.PathLike, pattern: str, storage_options: StorageOptions = None):
        """Takes a directory, or an address, and the pattern of its files' names."""
        super().__init__(path, storage_options)
        self._pattern = pattern

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, "path": self._folder.place, "pattern": self._pattern}

    @abc.abstractmethod
    def places(self, file: BinaryIO, name: str, size: int) -> Iterator[tuple[int, int]]:
        """Where each sample of a file begins, and its length, in bytes.

        Raises:
            DamagedFileError: if the file, of this name and size, is not in the format.
        """

    def scan(self, progress: Progress | None = None) -> Listing:
        """Lists files and, by their headers, samples; as `Source.scan`.

        Raises:
            DamagedFileError: if a file is not in the format.
            ValueError: also if something with a file's name is not a file.
        """
        found, samples = self._found(self._names()), []
        for number, each in enumerate(found):
            with self._folder.opened(each.name) as file:
                places = self.places(file, self._folder.shown(each.name), each.size)
                samples += [(number, offset, length, NO_LABEL) for offset, length in places]
            if progress:
                progress(number + 1, len(found))
        if not samples:
            raise ValueError(
                f"{self._folder.shown()} has no record in files named {self._pattern}: pass another pattern=."
            )
        names, sizes, times = zip(*found, strict=True)
        return Listing.build(self.identity, names, sizes, times, samples)

    def describe(self, listing: Listing, index: int) -> str:
        return f"{super().describe(listing, index)[:-1]}, byte {int(listing.offsets[index])})"

    def key(self, listing: Listing, index: int) -> Any:
        """The path of the file, relative to the directory, and where the sample begins in it, in bytes."""
        return super().key(listing, index), int(listing.offsets[index])

    def _place(self, listing: Listing, index: int) -> tuple[int, int, int]:
        """The file of a sample, and where it begins in it, and its length, in bytes."""
        file, offset, length = (int(column[index]) for column in (listing.file_of, listing.offsets, listing.lengths))
        return file, offset, length

    def _names(self) -> Sequence[str]:
        return self._folder.matching(self._pattern, f"a directory of {self.WHAT} files")


class TFRecords(RecordsBelow):
    """The records of uncompressed TFRecord files, without labels: what decoding returns is all there is."""

    WHAT = "TFRecord"

    def __init__(self, path: str | os.PathLike, pattern: str = "*.tfrecord*", storage_options: StorageOptions = None):
        """Takes a directory and the pattern of its files' names; samples are in the order of names, then records.

        An address such as s3://bucket/train is opened by fsspec, with these options; see `RemoteFolder`.
        """
        super().__init__(path, pattern, storage_options)

    def places(self, file: BinaryIO, name: str, size: int) -> Iterator[tuple[int, int]]:
        return tfrecord.index(file, name, size)

    def read(self, listing: Listing, index: int) -> bytes:
        file, offset, length = self._place(listing, index)
        framed = self._read_from(listing, file, offset, length + tfrecord.FOOTER.size)
        tfrecord.check(framed[:length], framed[length:], self._shown(listing, file), offset)
        return framed[:length]


def _class_names(classes: Sequence[str]) -> tuple[str, ...]:
    names = () if isinstance(classes, str) else tuple(classes)
    if not names or len(set(names)) < len(names) or any(not isinstance(name, str) or os.sep in name for name in names):
        raise ValueError(f"Expected classes as a list of distinct folder names, got {classes!r}.")
    return names


def _few(names: Sequence[str]) -> str:
    """Names for a message; only the first ones if there are many."""
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
