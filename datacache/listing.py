"""The contents of a source, listed once: files with sizes and times, samples with place and label.

On disk it is a directory with a file for each column, plain little-endian numbers, which all processes of a node map
and share. It is checked against its fingerprint when it is loaded.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from datacache import files

NO_LABEL = -1
UNKNOWN_LENGTH = -1
_COLUMNS = {  # name: dtype
    "names": np.uint8,
    "name_ends": np.int64,
    "sizes": np.int64,
    "times": np.int64,
    "file_of": np.int64,
    "offsets": np.int64,
    "lengths": np.int64,
    "labels": np.int64,
}
_HEAD = "head.json"


@dataclasses.dataclass(frozen=True)
class Listing:
    """Files and samples of a source.

    Attributes:
        identity: kind and arguments of the source, JSON-serialisable.
        classes: names of the labels, if it has them.
        names: uint8, the files' paths, relative to the source, in UTF-8, one after another.
        name_ends: int64 [files], where each path ends in names.
        sizes: int64 [files], bytes.
        times: int64 [files], when each was last written, in nanoseconds.
        file_of: int64 [samples], the number of the file that a sample is in; -1 if there are no files.
        offsets: int64 [samples], where its bytes begin in that file.
        lengths: int64 [samples], bytes, or `UNKNOWN_LENGTH`.
        labels: int64 [samples], or `NO_LABEL` if the label is in the record.
    """

    identity: dict[str, Any]
    classes: tuple[str, ...]
    names: np.ndarray
    name_ends: np.ndarray
    sizes: np.ndarray
    times: np.ndarray
    file_of: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray

    @classmethod
    def build(
        cls,
        identity: dict[str, Any],
        names: Sequence[str] = (),
        sizes: Iterable[int] = (),
        times: Iterable[int] = (),
        samples: Sequence[tuple[int, int, int, int]] | np.ndarray = (),
        classes: Sequence[str] = (),
    ) -> Listing:
        """Builds a listing from the results of a scan; samples are rows of (file, offset, length, label).

        Raises:
            ValueError: if a row is not four integers that fit into int64; the message names the sample.
        """
        encoded = [os.fsencode(name) for name in names]
        table = _table(samples)
        return cls(
            identity,
            tuple(classes),
            np.frombuffer(b"".join(encoded), np.uint8),
            np.cumsum([len(name) for name in encoded], dtype=np.int64),
            np.asarray(list(sizes), np.int64),
            np.asarray(list(times), np.int64),
            *(np.ascontiguousarray(column) for column in table.T),
        )

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.labels)

    @property
    def file_count(self) -> int:
        """The number of files."""
        return len(self.sizes)

    @property
    def total_bytes(self) -> int | None:
        """The number of bytes of all samples together; None if lengths are not known in advance."""
        return None if (self.lengths == UNKNOWN_LENGTH).any() else int(self.lengths.sum())

    def name(self, file: int) -> str:
        """The path of a file, relative to the source."""
        start = int(self.name_ends[file - 1]) if file else 0
        return os.fsdecode(self.names[start : int(self.name_ends[file])].tobytes())

    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with any path, size, time, place or label."""
        digest = xxhash.xxh3_128(self._head())
        for name in _COLUMNS:
            column = getattr(self, name)
            digest.update(len(column).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    def content(self) -> str:
        """As `fingerprint`, but independent of where the files are: nodes may mount them in different places.

        A user's function that reads them may hold such a place, so it does not count either.
        """
        placeless = {key: value for key, value in self.identity.items() if key not in ("path", "function")}
        return dataclasses.replace(self, identity=placeless).fingerprint()

    def save(self, directory: Path) -> None:
        """Writes a directory, which appears when it is complete; an existing one is replaced."""
        part = directory.with_name(f".{os.getpid()}.{directory.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        try:
            with files.needing_room_for(directory):
                self._write(part)
            shutil.rmtree(directory, ignore_errors=True)
            part.rename(directory)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        files.sync(directory.parent)

    def _write(self, directory: Path) -> None:
        directory.mkdir()
        (directory / _HEAD).write_bytes(self._head())
        for name in _COLUMNS:
            (directory / name).write_bytes(np.ascontiguousarray(getattr(self, name)).data)
        for path in directory.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())

    @classmethod
    def load(cls, directory: Path, fingerprint: str) -> Listing | None:
        """Maps what `save` wrote; None if it is missing or damaged, so that the source is listed again."""
        head = files.read_json(directory / _HEAD)
        try:
            columns = {name: _mapped(directory / name, dtype) for name, dtype in _COLUMNS.items()}
        except (OSError, ValueError):
            return None
        if not isinstance(head, dict) or set(head) != {"identity", "classes"}:
            return None
        listing = cls(head["identity"], tuple(head["classes"]), **columns)
        return listing if listing.fingerprint() == fingerprint else None

    def _head(self) -> bytes:
        return json.dumps({"identity": self.identity, "classes": self.classes}, sort_keys=True).encode()


def label_of(value: Any, name: str) -> int:
    """Converts a label: an integer that fits into int64, of Python, NumPy or a tensor; a boolean is 0 or 1.

    A float is never accepted, even a whole number: otherwise labels of one kind would pass for some samples and fail
    for others.

    Raises:
        ValueError: for anything else, as rounding it or parsing it as a number would change the label.
    """
    try:
        number = int(value) if isinstance(value, np.bool_) else operator.index(value)
    except (TypeError, ValueError, AttributeError):  # from tensors that hold no single integer
        number = None
    if number is None or not -(2**63) <= number < 2**63:
        raise ValueError(
            f"Expected an integer label that fits int64 for {name}, got {value!r} ({type(value).__name__}): use "
            "the number of its class; other data belongs in the array."
        )
    return number


def _table(samples: Sequence[tuple[int, int, int, int]] | np.ndarray) -> np.ndarray:
    """Rows of (file, offset, length, label) as int64 [n, 4]; errors as from `Listing.build`."""
    try:
        table = np.asarray(samples)
    except ValueError:  # rows of unequal length
        table = np.empty(0)
    if len(samples) == 0:
        return np.empty((0, 4), np.int64)
    if table.shape == (len(samples), 4) and table.dtype.kind in "iu" and table.max() < 2**63:
        return table.astype(np.int64)
    for number, row in enumerate(samples):
        if np.ndim(row) != 1 or len(row) != 4:
            raise ValueError(f"Expected (file, offset, length, label) of sample {number}, got {row!r}.")
        label_of(row[3], f"sample {number}")
    raise ValueError(f"Expected integers (file, offset, length, label) of each sample, got {table.dtype}.")


def _mapped(path: Path, dtype: type) -> np.ndarray:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype, mode="r")
