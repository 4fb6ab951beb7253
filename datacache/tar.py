"""The source that is a directory of tar files, in the layout of WebDataset."""

from __future__ import annotations

import io
import itertools
import os
import posixpath
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from datacache.errors import DamagedFileError
from datacache.listing import Listing
from datacache.remote import StorageOptions
from datacache.sources import RecordsBelow

_BLOCK = 512  # bytes; what tar files consist of
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}


class Tar(RecordsBelow):
    """Tar files whose neighbouring members of one name, up to the first dot, are a sample: 7.jpg and 7.cls.

    A decode function gets a dict of the members' bytes by what follows the dot, {"jpg": ..., "cls": ...}, and under
    "__key__" the name before it, with the directories in the tar file.
    """

    WHAT = "tar"

    def __init__(self, path: str | os.PathLike, pattern: str = "*.tar", storage_options: StorageOptions = None):
        """Takes a directory and the pattern of its files' names; samples are in the order of names, then members.

        An address such as s3://bucket/train is opened by fsspec, with these options; see `RemoteFolder`.
        """
        super().__init__(path, pattern, storage_options)

    def places(self, file: BinaryIO, name: str, size: int) -> Iterator[tuple[int, int]]:
        compressed = _COMPRESSED.get(file.read(2))
        if compressed:
            raise DamagedFileError(
                f"{name} is compressed by {compressed}, so no sample can be read by itself: decompress it, as images "
                "are compressed already."
            )
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:") as members:
                yield from _spans(members)
        except tarfile.TarError as error:
            raise DamagedFileError(f"{name} is no tar file, or a damaged one ({error}): restore it.") from None

    def read(self, listing: Listing, index: int) -> bytes:
        return self._read_from(listing, *self._place(listing, index))

    def opened(self, payload: bytes) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        with tarfile.open(fileobj=io.BytesIO(payload), mode="r:") as members:
            for member in filter(_counts, members):
                parts["__key__"], kind = _split(member.name)
                content = members.extractfile(member)
                assert content is not None  # as it is a file
                parts[kind] = content.read()
        return parts


def _spans(members: Iterable[tarfile.TarInfo]) -> Iterator[tuple[int, int]]:
    """Where each sample of a file begins, and its length, in bytes."""
    for _, parts in itertools.groupby(filter(_counts, members), lambda member: _split(member.name)[0]):
        first, *others = parts
        last = others[-1] if others else first
        yield first.offset, last.offset_data + -(-last.size // _BLOCK) * _BLOCK - first.offset


def _counts(member: tarfile.TarInfo) -> bool:
    """Whether a member is part of a sample: a file whose name has a dot, but not at its beginning."""
    return member.isfile() and "." in posixpath.basename(member.name).lstrip(".")


def _split(name: str) -> tuple[str, str]:
    """The key of a sample, and what follows the first dot."""
    folder, base = posixpath.split(name)
    stem, _, kind = base.partition(".")
    return posixpath.join(folder, stem), kind.lower()
