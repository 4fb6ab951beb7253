"""The source that is a directory of tar files, in the layout of WebDataset."""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from datacache.errors import DamagedFileError
from datacache.listing import NO_LABEL, Listing
from datacache.remote import StorageOptions
from datacache.sources import FilesBelow, Progress

_BLOCK = 512  # bytes; what tar files consist of
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}


class Tar(FilesBelow):
    """Tar files whose neighbouring members of one name, up to the first dot, are a sample: 7.jpg and 7.cls.

    A decode function gets a dict of the members' bytes by what follows the dot, {"jpg": ..., "cls": ...}, and under
    "__key__" the name before it, with the directories in the tar file.
    """

    def __init__(self, path: str | os.PathLike, pattern: str = "*.tar", storage_options: StorageOptions = None):
        """Takes a directory and the pattern of its files' names; samples are in the order of names, then members.

        An address such as s3://bucket/train is opened by fsspec, with these options; see `RemoteFolder`.
        """
        super().__init__(path, storage_options)
        self._pattern = pattern

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "Tar", "path": self._folder.place, "pattern": self._pattern}

    def scan(self, progress: Progress | None = None) -> Listing:
        """Lists files and, by their headers, members; as `Source.scan`.

        Raises:
            DamagedFileError: if a file is not a tar file, or compressed.
        """
        found, samples = [self._folder.found(name) for name in self._names()], []
        for number, each in enumerate(found):
            with self._folder.opened(each.name) as file:
                places = _places(file, self._folder.shown(each.name))
                samples += [(number, begin, end - begin, NO_LABEL) for begin, end in places]
            if progress:
                progress(number + 1, len(found))
        if not samples:
            raise ValueError(
                f"{self._folder.shown()} has no sample in files named {self._pattern}: pass another pattern=."
            )
        names, sizes, times = zip(*found, strict=True)
        return Listing.build(self.identity, names, sizes, times, samples)

    def read(self, listing: Listing, index: int) -> bytes:
        file, offset, length = (int(column[index]) for column in (listing.file_of, listing.offsets, listing.lengths))
        return self._read_from(listing, file, offset, length)

    def opened(self, payload: bytes) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        with tarfile.open(fileobj=io.BytesIO(payload), mode="r:") as members:
            for member in filter(_counts, members):
                parts["__key__"], kind = _split(member.name)
                content = members.extractfile(member)
                assert content is not None  # as it is a file
                parts[kind] = content.read()
        return parts

    def describe(self, listing: Listing, index: int) -> str:
        return f"{super().describe(listing, index)[:-1]}, byte {int(listing.offsets[index])})"

    def key(self, listing: Listing, index: int) -> Any:
        """The path of the file, relative to the directory, and where the sample begins in it, in bytes."""
        return super().key(listing, index), int(listing.offsets[index])

    def _names(self) -> Sequence[str]:
        return self._folder.matching(self._pattern, "a directory of tar files")


def _places(file: BinaryIO, name: str) -> Iterator[tuple[int, int]]:
    """Where each sample of a file begins and ends, in bytes."""
    compressed = _COMPRESSED.get(file.read(2))
    if compressed:
        raise DamagedFileError(
            f"{name} is compressed by {compressed}, so no sample can be read by itself: decompress it, as images are "
            "compressed already."
        )
    file.seek(0)
    begin, end, known = 0, 0, None
    try:
        with tarfile.open(fileobj=file, mode="r:") as members:
            for member in filter(_counts, members):
                key = _split(member.name)[0]
                if known is not None and key != known:
                    yield begin, end
                begin = begin if key == known else member.offset
                known, end = key, member.offset_data + -(-member.size // _BLOCK) * _BLOCK
    except tarfile.TarError as error:
        raise DamagedFileError(f"{name} is no tar file, or a damaged one ({error}): restore it.") from None
    if known is not None:
        yield begin, end


def _counts(member: tarfile.TarInfo) -> bool:
    """Whether a member is part of a sample: a file whose name has a dot, but not at its beginning."""
    return member.isfile() and "." in posixpath.basename(member.name).lstrip(".")


def _split(name: str) -> tuple[str, str]:
    """The key of a sample, and what follows the first dot."""
    folder, base = posixpath.split(name)
    stem, _, kind = base.partition(".")
    return posixpath.join(folder, stem), kind.lower()
