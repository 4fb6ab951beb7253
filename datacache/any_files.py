"""The source that is a directory of any files: each is a sample."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datacache.listing import NO_LABEL, Listing
from datacache.remote import StorageOptions
from datacache.sources import FilesBelow, Progress


class Files(FilesBelow):
    """Files below a directory, each of which is a sample, without labels: what decoding returns is all there is."""

    def __init__(self, path: str | os.PathLike, pattern: str = "**/*", storage_options: StorageOptions = None):
        """Takes the directory and the pattern of its files' paths.

        Args:
            path: of the directory, or an address such as s3://bucket/train, for which fsspec must be installed.
            pattern: of paths below it, as for `pathlib.Path.glob`: by default all files, also in subfolders, whose
                names do not begin with a dot. Samples are in the order of their paths.
            storage_options: of an address; see `RemoteFolder`.

        Raises:
            ImportError: for an address, if fsspec or its package for this store is not installed.
        """
        super().__init__(path, storage_options)
        self._pattern = pattern

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "Files", "path": self._folder.place, "pattern": self._pattern}

    def scan(self, progress: Progress | None = None) -> Listing:
        """Lists all files; as `Source.scan`.

        Raises:
            ValueError: also if something with a file's name is not a file.
        """
        names = self._names()
        if not names:
            raise ValueError(
                f"{self._folder.shown()} has no file whose path matches {self._pattern}: pass another pattern=."
            )
        _, sizes, times = zip(*self._found(names, progress, len(names)), strict=True)
        samples = [(file, 0, size, NO_LABEL) for file, size in enumerate(sizes)]
        return Listing.build(self.identity, names, sizes, times, samples)

    def read(self, listing: Listing, index: int) -> bytes:
        return self._read_from(listing, int(listing.file_of[index]), 0, int(listing.lengths[index]))

    def _names(self) -> Sequence[str]:
        found = self._folder.matching(self._pattern, "a directory")
        return [name for name in found if not any(part.startswith(".") for part in Path(name).parts)]
