"""The memory level: one copy of the decoded samples for all processes of a node, in a file in /dev/shm.

Its pages are reserved when it is created, so that a device that is too small causes an error then and no crash later.
It is filled once and nothing is evicted: in a random order each sample is as likely to be next as any other, and a
cache that evicts the least recently used would lose most samples just before they are needed again. Ownership: see
`memory`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datacache import files, limits, mapping, memory
from datacache.levels import DamagedRecordError, Level, Record
from datacache.native import SlabHandle, address, library

_MAGIC = b"datacache slab 1\n"  # the beginning of a complete slab
_FOUND, _DAMAGED = 1, 2  # of enum datacache_found
_NONE = 2**64 - 1  # DATACACHE_NONE
_SPARE = 16  # extra places, for records that were damaged or whose writer was killed


class _Mapping(NamedTuple):
    """Shared memory, mapped as long as this object is referenced."""

    memory: np.ndarray
    handle: SlabHandle


def needed(samples: int, payload_bytes: int) -> int:
    """Bytes of a slab that holds all samples of this size."""
    payloads = (samples + _SPARE) * library().datacache_slab_footprint(payload_bytes)
    return library().datacache_slab_overhead(samples) + payloads


class Slab(Level):
    """Records of any length in shared memory; if all have the same length, `gather` copies whole batches."""

    name = "memory"

    def __init__(self, directory: Path, key: str, samples: range, size: int):
        """Opens the slab with this key, or creates it.

        Args:
            directory: on a tmpfs, normally `memory.directory()`; created if missing, for this user alone.
            key: identifies the records: slabs with the same key have the same records.
            samples: consecutive indices that may be put.
            size: total bytes; what does not fit is not kept.

        Raises:
            NoSpaceError: if the device does not have enough bytes.
            ValueError: if size is too small even for the table.
        """
        overhead = library().datacache_slab_overhead(len(samples))
        if size < overhead or samples.step != 1:
            raise ValueError(f"Expected at least {overhead} bytes of memory for {len(samples)} samples, got {size}.")
        memory.make(directory)
        self._path = directory / f"{key}-{samples.start}-{len(samples)}-{size}{memory.SLAB}"
        with files.locked(directory):
            memory.sweep(directory, keep=self._path)
            self._file, mapped = _open(self._path, size, samples)
        self._mapping: _Mapping | None = _Mapping(mapped, _handle(mapped, samples))
        self._lent: list[Callable[[], None]] = []

    def holds(self, indices: np.ndarray) -> np.ndarray:
        return self._lengths(indices) != _NONE

    def get(self, index: int) -> Record | None:
        indices = np.array([index], np.uint64)
        length = int(self._lengths(indices)[0])
        if length == _NONE:
            return None
        if length > len(self._alive().memory):
            raise DamagedRecordError(f"its length is given as {length} bytes")
        rows, labels = np.empty((1, length), np.uint8), np.empty(1, np.int64)
        found = self._copy(indices, rows, labels)[0]
        if found == _DAMAGED:
            raise DamagedRecordError("its checksum or its place is wrong")
        return Record(rows.tobytes(), int(labels[0])) if found == _FOUND else None  # removed meanwhile

    def put(self, index: int, record: Record) -> bool:
        mapping, payload = self._alive(), record.payload
        return library().datacache_slab_publish(mapping.handle, index, payload, len(payload), record.label) == 1

    def drop(self, index: int) -> None:
        mapping = self._alive()
        library().datacache_slab_forget(mapping.handle, index)

    def used_bytes(self) -> int:
        mapping = self._alive()
        return min(library().datacache_slab_used(mapping.handle), len(mapping.memory))

    def lend(self, take_back: Callable[[], None]) -> SlabHandle:
        """Where the memory is, for native code that reads it until `take_back`, called before the level is closed."""
        handle = self._alive().handle
        self._lent.append(take_back)
        return handle

    def close(self) -> None:
        """Releases the memory, and removes it if no other process has it open."""
        if self._mapping is None:
            return
        for take_back in self._lent:
            take_back()
        self._mapping = None  # unmapped as soon as no other thread copies from it
        with files.locked(self._path.parent):
            os.close(self._file)
            if not files.is_in_use(self._path):
                memory.remove(self._path)

    def gather(self, indices: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """As `Level.gather`, in native code; checksums are computed on the copies."""
        if indices.dtype != np.uint64 or rows.dtype != np.uint8 or labels.dtype != np.int64:
            raise TypeError(f"Expected uint64, uint8 and int64, got {indices.dtype}, {rows.dtype} and {labels.dtype}.")
        if rows.ndim != 2 or not len(indices) == len(rows) == len(labels):
            raise ValueError(f"Expected {len(indices)} rows and labels, got {rows.shape} and {labels.shape}.")
        return self._copy(indices, rows, labels) == _FOUND

    def _copy(self, indices: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Copies records, and returns what was found for each: uint8 [n], of enum datacache_found."""
        mapping, found = self._alive(), np.empty(len(indices), np.uint8)
        places = [address(array) for array in (indices, rows, labels, found)]
        library().datacache_slab_gather(
            mapping.handle, places[0], len(indices), places[1], rows.shape[1], places[2], places[3]
        )
        return found

    def _lengths(self, indices: np.ndarray) -> np.ndarray:
        if indices.dtype != np.uint64:
            raise TypeError(f"Expected indices of uint64, got {indices.dtype}.")
        mapping, lengths = self._alive(), np.empty(len(indices), np.uint64)
        library().datacache_slab_lengths(mapping.handle, address(indices), len(indices), address(lengths))
        return lengths

    def _alive(self) -> _Mapping:
        mapping = self._mapping
        if mapping is None:
            raise ValueError("This memory level is closed.")
        return mapping


def _open(path: Path, size: int, samples: range) -> tuple[int, np.ndarray]:
    """Maps an existing complete slab, or creates one; returns the open file, marked as in use, and the memory."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        whole = os.fstat(descriptor).st_size == size and os.pread(descriptor, len(_MAGIC), 0) == _MAGIC
        mapped = _map(descriptor, size, path) if whole else _make(descriptor, size, path, samples)
        files.share(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, mapped


def _make(descriptor: int, size: int, path: Path, samples: range) -> np.ndarray:
    """Gives a file zeroed pages and the table of an empty slab; removes the file if there is no room for it."""
    try:
        os.ftruncate(descriptor, 0)
        memory.require_room(path.parent, size, limits.for_memory(path.parent))
        _reserve(descriptor, size, path)
        mapped = _map(descriptor, size, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    library().datacache_slab_format(_handle(mapped, samples))
    mapped[: len(_MAGIC)] = np.frombuffer(_MAGIC, np.uint8)
    return mapped


def _reserve(descriptor: int, size: int, path: Path) -> None:
    try:
        mapping.reserve(descriptor, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise
        raise memory.no_room(error.errno, path.parent, size, limits.for_memory(path.parent)) from None


def _map(descriptor: int, size: int, path: Path) -> np.ndarray:
    memory.require_room(path.parent, size, limits.of_addresses())
    return mapping.map_shared(descriptor, size)


def _handle(mapped: np.ndarray, samples: range) -> SlabHandle:
    return SlabHandle(address(mapped), len(mapped), samples.start, len(samples))
