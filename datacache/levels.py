"""The role `Level`: it keeps records by sample index, and returns exactly what was put there, or nothing."""

from __future__ import annotations

import abc
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datacache import native

_MULTIPLIER, _WORD = 0x9E3779B97F4A7C15, 2**64 - 1


class Record(NamedTuple):
    """What a level keeps of a sample: its bytes, encoded or decoded, and its label."""

    payload: bytes
    label: int


class DamagedRecordError(Exception):
    """A record whose checksum, or whose place, is wrong. It is never served."""


def checksum(index: int, record: Record) -> int:
    """XXH3 of the payload, seeded with index and label: at another index, a record has another checksum."""
    return native.xxh3(record.payload, (index * _MULTIPLIER + record.label) & _WORD)


class Level(abc.ABC):
    """Records by sample index, kept once and never evicted.

    A new member defines the methods below and gets a row in the table of tests/datacache/members.py. All methods may be
    called by several threads and processes at once; `put` and `drop` of one index by one at a time.

    Attributes:
        name: its name in counters and messages.
    """

    name: str

    @abc.abstractmethod
    def holds(self, indices: np.ndarray) -> np.ndarray:
        """Which of these samples (uint64 [n]) have a record, whole or damaged: bool [n]."""

    @abc.abstractmethod
    def get(self, index: int) -> Record | None:
        """The record, or None if there is none.

        Raises:
            DamagedRecordError: if its checksum is wrong.
        """

    @abc.abstractmethod
    def put(self, index: int, record: Record) -> bool:
        """Keeps a record that the level does not hold; returns False if it does not fit."""

    @abc.abstractmethod
    def drop(self, index: int) -> None:
        """Removes a damaged record, so that `put` can put it again."""

    @abc.abstractmethod
    def used_bytes(self) -> int:
        """The number of bytes of its device that it uses."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes what is open; calling it again does nothing."""

    def gather(self, indices: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Copies the payloads of those samples that are present and whole into rows.

        Args:
            indices: uint64 [n].
            rows: uint8 [n, bytes of a payload], contiguous; the rows of samples that are not found are undefined
                afterwards.
            labels: int64 [n], likewise.

        Returns:
            bool [n], the samples that were found.
        """
        found = np.zeros(len(indices), bool)
        for row, index in enumerate(indices):
            record = self._whole(int(index))
            if record is not None and len(record.payload) == rows.shape[1]:
                rows[row] = np.frombuffer(record.payload, np.uint8)
                labels[row], found[row] = record.label, True
        return found

    def collect(self, indices: np.ndarray) -> list[Record | None]:
        """The records of these samples (uint64 [n]), of any length; None for each that is missing or damaged."""
        return [self._whole(int(index)) for index in indices]

    def _whole(self, index: int) -> Record | None:
        try:
            return self.get(index)
        except DamagedRecordError:
            return None


class Nowhere(Level):
    """Stands in for a level that is not wanted: it accepts everything and keeps nothing."""

    def __init__(self, name: str):
        """Takes the name of the level that it stands in for."""
        self.name = name

    def holds(self, indices: np.ndarray) -> np.ndarray:
        return np.zeros(len(indices), bool)

    def get(self, index: int) -> Record | None:
        return None

    def put(self, index: int, record: Record) -> bool:
        return True

    def drop(self, index: int) -> None:
        pass

    def used_bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass


class Quarantine:
    """The list of records that were found damaged, one JSON object per line.

    It shows which memory or disk is failing: the listed records have been removed and fetched again.
    """

    def __init__(self, path: Path):
        """Takes the file, made at the first entry."""
        self._path = path

    def note(self, level: str, index: int, reason: str) -> None:
        """Adds an entry."""
        entry = {"level": level, "index": index, "reason": reason, "time": round(time.time(), 3)}
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"\n{json.dumps(entry)}\n".encode())  # the previous line may be incomplete
        finally:
            os.close(descriptor)

    def entries(self) -> list[dict]:
        """All entries; a line that was cut off by a crash is skipped."""
        try:
            lines = self._path.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
