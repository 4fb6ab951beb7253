"""The memory level for samples of varying size: records in an LMDB file on a tmpfs, shared by a node's processes.

It is the same kind of file as the level on the local disk: nothing is evicted, and a killed process leaves it as it was
after the last whole record. Ownership: see `memory`. Its pages are not reserved, as it is not known in advance how many
will be needed; if the device fills up, the level keeps what it has, as LMDB writes pages instead of storing to mapped
ones.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from datacache import files, limits, memory
from datacache.disk import READERS, SMALLEST, DiskLevel
from datacache.levels import Record
from datacache.limits import Room

_LOCK_BYTES = 4096 + 64 * READERS  # of LMDB's table of readers
_ASIDE = 128 << 10  # for that table and the small files next to the records


class TmpfsLevel(DiskLevel):
    """Records of any length in memory; the same level may be opened several times, also in one process."""

    def __init__(self, directory: Path, key: str, size: int | None = None):
        """Opens the level with this key and size, or creates it.

        Args:
            directory: on a tmpfs, normally `memory.directory()`; created if missing, for this user alone.
            key: identifies the records: levels with the same key have the same records.
            size: total bytes; what does not fit is not kept. By default half of what is free.

        Raises:
            NoSpaceError: if the device does not have enough bytes now.
            UnsuitableFileSystemError: if the directory is on a network file system.
            ValueError: if size is less than 1 MiB plus what is needed besides the records.
        """
        if size is not None and size < SMALLEST + _ASIDE:
            raise ValueError(
                f"Expected at least {SMALLEST + _ASIDE} bytes of memory for samples of varying shape, got {size}."
            )
        files.refuse_remote(directory, "memory_dir")
        memory.make(directory)
        self._directory = directory
        self._too_long: float = math.inf  # payloads of this many bytes or more are no longer tried
        path = directory / f"{key}-{size or 'half'}{memory.LMDB}"
        with files.locked(directory):
            memory.sweep(directory, keep=path)
            try:
                super().__init__(path, (size or _half(path)) - _ASIDE, "memory")
            except BaseException:
                if not files.is_in_use(memory.mark(path)):
                    memory.remove(path)
                raise

    def put(self, index: int, record: Record) -> bool:
        """As `Level.put`; once a record did not fit, records of the same length or longer are no longer tried."""
        length = len(record.payload)
        if length >= self._too_long:
            return False
        kept = self._keep(index, record)
        if not kept:
            self._too_long = length
        return kept

    def close(self) -> None:
        """Releases the memory, and removes it if no other process has it open."""
        if self._use is None:
            return
        super().close()
        with files.locked(self._directory):
            if not files.is_in_use(memory.mark(self._path)):
                memory.remove(self._path)

    def _get_ready(self, size: int) -> None:
        memory.require_room(self._directory, size + _ASIDE, _rooms(self._path))
        super()._get_ready(size)
        _reserve_readers(self._path)


def _rooms(path: Path) -> list[Room]:
    """The rooms for a level, of which it may have something already."""
    data = path / "data.mdb"
    return limits.for_memory(path.parent, data.stat().st_blocks * 512 if data.exists() else 0)


def _half(path: Path) -> int:
    return max(min(_rooms(path)).bytes // 2, SMALLEST + _ASIDE)


def _reserve_readers(path: Path) -> None:
    """Gives LMDB's table of readers its pages: on a full device a new reader would touch a page that is missing.

    LMDB creates the table anew in the existing file.
    """
    table = path / "lock.mdb"
    table.unlink(missing_ok=True)
    descriptor = os.open(table, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with files.needing_room_for(table):
            os.posix_fallocate(descriptor, 0, _LOCK_BYTES)
    finally:
        os.close(descriptor)
