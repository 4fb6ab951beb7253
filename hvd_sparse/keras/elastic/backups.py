"""Commits of an elastic state on disk, for the day on which no rank is left.

Each rank writes a file of its own, `commit-00000123.npz.rank1of4`, and waits for no other: so also a rank that is cut
off from all others can. A commit counts if all of its ranks have written. One that ranks write while they cannot reach
the others, `rest-00000123.npz.rank1of4`, counts as it is: the others were lost. Nothing here is a collective.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import re
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hvd_sparse.storage import archives, claims, files
from hvd_sparse.storage.archives import Archive

_log = logging.getLogger(__name__)
_WHOLE, _REST = "commit", "rest"
_NAME = re.compile(rf"({_WHOLE}|{_REST})-(\d{{8,}})\.npz\.rank(\d+)of(\d+)")
_OURS = re.compile(rf"{_NAME.pattern}(\.\d+\.tmp)?")
_KEPT = 2  # whole commits


class Backup(NamedTuple):
    """A commit on disk; JSON-serializable.

    Attributes:
        number: of the commit.
        kind: "commit" or "rest", with which the names of its files begin.
        ranks: how many ranks there were.
        present: those whose files there are, ascending.
    """

    number: int
    kind: str
    ranks: int
    present: list[int]

    @property
    def counts(self) -> bool:
        """Whether training can go on from it."""
        return self.kind == _REST or len(self.present) == self.ranks


class Backups:
    """The commits in a directory, and when the next one is written.

    Args:
        directory: shared by all ranks; made when it is needed.
        seconds: from one that is written while training goes on to the next.
    """

    def __init__(self, directory: str | os.PathLike, seconds: float):
        if seconds <= 0:
            raise ValueError(f"Expected backup_seconds of more than 0, got {seconds}.")
        self.directory, self._seconds = pathlib.Path(directory), seconds
        self._since = time.monotonic()
        self._writer: threading.Thread | None = None

    def is_due(self) -> bool:
        """Whether this rank would write the next commit."""
        return time.monotonic() - self._since >= self._seconds and not self._is_writing()

    def write_beside(self, place: Backup, manifest: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Writes this rank's file on a thread; a failure is a warning.

        Args:
            place: `present` has this rank alone.
            manifest: JSON-serializable.
            arrays: these must not change any more.
        """
        self._since = time.monotonic()
        self._writer = threading.Thread(target=self._try, args=(place, manifest, arrays), name="hvd_sparse_backup")
        self._writer.start()

    def write(self, place: Backup, manifest: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Writes this rank's file; arguments as for `write_beside`.

        Raises:
            OSError: if it cannot be written.
        """
        self.wait()
        self._write(place, manifest, arrays)

    def found(self) -> list[Backup]:
        """All commits with at least one file, the newest first; of two with one number, the whole one first.

        Raises:
            OSError: if the directory exists and cannot be read.
        """
        present: dict[tuple[int, str, int], list[int]] = {}
        for name in self._names():
            if match := _NAME.fullmatch(name):
                kind, number, rank, ranks = match[1], *map(int, match.groups()[1:])
                present.setdefault((number, kind, ranks), []).append(rank)
        made = [Backup(number, kind, ranks, sorted(each)) for (number, kind, ranks), each in present.items()]
        return sorted(made, key=lambda each: (-each.number, each.kind))

    def read(self, backup: Backup, rank: int) -> Archive:
        """The file of a rank.

        Raises:
            OSError: if it is missing or damaged.
        """
        return archives.read(self._path(backup, rank))

    def wait(self) -> None:
        """Waits until this rank's file is written."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def claim(self) -> None:
        """Claims the directory for this process's job.

        Raises:
            OSError: if another job has it, or if it cannot be written.
        """
        claims.take(self.directory)

    def release(self) -> None:
        """Gives up the claim."""
        claims.release(self.directory)

    def remove(self) -> None:
        """Removes all commits, as after the end of training; other files stay."""
        self.wait()
        self._remove(lambda match: True)

    def _try(self, place: Backup, manifest: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        try:
            self._write(place, manifest, arrays)
        except OSError as error:
            _log.warning("commit %d could not be backed up, and training goes on without: %s", place.number, error)

    def _write(self, place: Backup, manifest: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        archives.write(self._path(place, place.present[0]), {"format": archives.FORMAT, **manifest}, arrays)
        self._remove_before(place.number)

    def _is_writing(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _remove_before(self, number: int) -> None:
        """Removes what is older than the last whole commits; the ranks that were last to write them find these."""
        whole = [each.number for each in self.found() if each.kind == _WHOLE and each.counts and each.number <= number]
        if len(whole) >= _KEPT:
            self._remove(lambda match: int(match[2]) < whole[_KEPT - 1])

    def _remove(self, unwanted: Any) -> None:
        for name in self._names():
            match = _OURS.fullmatch(name)
            if match and unwanted(match):
                with contextlib.suppress(OSError):  # another rank may be faster
                    (self.directory / name).unlink(missing_ok=True)

    def _names(self) -> list[str]:
        return sorted(os.listdir(self.directory)) if self.directory.exists() else []

    def _path(self, backup: Backup, rank: int) -> pathlib.Path:
        return files.of_rank(self.directory / f"{backup.kind}-{backup.number:08}.npz", rank, backup.ranks)


def whole(number: int, rank: int, ranks: int) -> Backup:
    """A rank's file of a commit that all ranks write."""
    return Backup(number, _WHOLE, ranks, [rank])


def rest(number: int, rank: int, ranks: int) -> Backup:
    """A rank's file of a commit, if the other ranks are lost, or may be."""
    return Backup(number, _REST, ranks, [rank])
