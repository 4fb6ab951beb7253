"""The source that is a user's function: samples by index."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import xxhash

from datacache import fingerprint
from datacache.listing import NO_LABEL, UNKNOWN_LENGTH, Listing, label_of
from datacache.sources import Progress, Source


class Indexed(Source):
    """A user's function that maps an index to bytes.

    What is kept of its samples is used again for the same name, size, labels and function: by default the function
    counts with everything that it depends on, as a decode function does.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        size: int,
        name: str,
        labels: Iterable[int] | None = None,
        version: str | None = None,
    ):
        """Takes the function, the number of samples, their name, and their labels, if known.

        Args:
            read: maps an index in [0, size) to bytes; called by several threads at once. The files or records that it
                reads are not examined: if they change, change the name or the version.
            size: number of samples.
            name: of the data, for people; it is part of their identity.
            labels: [size] integers, not negative; without them decoding must return the label.
            version: of the function and its data, which then counts in place of the function: change it whenever the
                bytes change. Needed for a function that holds something whose content cannot be compared, such as a
                connection, or that differs between the processes of a node, which share what is kept. Better for one
                that holds much data, all of which is read to compare it.

        Raises:
            ValueError: if there is no sample or no name, labels have another number, are negative or not integers, or
                the function cannot be compared with a later one and there is no version.
        """
        self._given = None if labels is None else _labels(labels)
        if size < 1 or (self._given is not None and (len(self._given) != size or self._given.min() < 0)):
            counted = "no labels" if self._given is None else f"{len(self._given)} labels"
            raise ValueError(f"Expected at least 1 sample and a label >= 0 for each, got size={size} and {counted}.")
        if not name:
            raise ValueError("Expected a name that distinguishes this version of the data, got none.")
        self._read, self._size, self._name = read, size, name
        self._function = _told_apart(read, name) if version is None else _given(version)

    @property
    def identity(self) -> dict[str, Any]:
        digest = None if self._given is None else xxhash.xxh3_128(self._given.tobytes()).hexdigest()
        return {"kind": "Indexed", "name": self._name, "size": self._size, "labels": digest, **self._function}

    @property
    def doubtful_identity(self) -> dict[str, Any] | None:
        return {"kind": "Indexed", "name": self._name, "size": self._size}

    def scan(self, progress: Progress | None = None) -> Listing:
        samples = np.full((self._size, 4), -1, np.int64)
        samples[:, 2] = UNKNOWN_LENGTH
        samples[:, 3] = NO_LABEL if self._given is None else self._given
        return Listing.build(self.identity, samples=samples)

    def read(self, listing: Listing, index: int) -> bytes:
        data = self._read(index)
        if not isinstance(data, bytes):
            raise TypeError(f"Expected bytes for sample {index} from {self._name!r}, got {type(data).__name__}.")
        return data


def _told_apart(read: Callable[[int], bytes], name: str) -> dict[str, str]:
    """What stands for a function in an identity."""
    try:
        return {"function": fingerprint.of(read)}
    except ValueError as error:
        raise ValueError(
            f"Expected a function for {name!r} that can be compared with a later one, so that no other data are served "
            'for it, or a version: pass Indexed(..., version="1"), and another one whenever the bytes change. The '
            f"function cannot be compared: {error}"
        ) from None


def _given(version: str) -> dict[str, str]:
    if not isinstance(version, str) or not version:
        raise ValueError(f"Expected a version as a string that is not empty, got {version!r}.")
    return {"version": version}


def _labels(given: Iterable[Any]) -> np.ndarray:
    if isinstance(given, np.ndarray) and given.dtype.kind == "i" and given.ndim == 1:
        return given.astype(np.int64)
    return np.array([label_of(label, f"sample {index}") for index, label in enumerate(given)], np.int64)
