"""Memory for batches: aligned, and reused once nothing refers to it.

Fresh memory costs a page fault for every 4 KB. And TensorFlow uses an array without a copy if it begins at a multiple
of 64 bytes.
"""

from __future__ import annotations

import threading
import weakref

import numpy as np

_ALIGNMENT = 64


class _Lease:
    """The base of an array that was handed out: its memory is free again when nothing refers to this any more."""

    def __init__(self, memory: np.ndarray):
        self.memory = memory
        self.__array_interface__ = memory.__array_interface__


class Buffers:
    """Blocks of one size, handed out as arrays."""

    def __init__(self, size: int, most: int = 8):
        """Takes the size of a block in bytes, and the number of free blocks that are kept."""
        self._size, self._most = size, most
        self._free: list[np.ndarray] = []
        self._lock = threading.Lock()

    def take(self) -> np.ndarray:
        """A block, uint8 [size], with undefined content; it is returned automatically."""
        with self._lock:
            memory = self._free.pop() if self._free else None
        lease = _Lease(aligned(self._size) if memory is None else memory)
        weakref.finalize(lease, self._give_back, lease.memory).atexit = False
        return np.asarray(lease)

    def _give_back(self, memory: np.ndarray) -> None:
        with self._lock:
            if len(self._free) < self._most:
                self._free.append(memory)


def aligned(size: int) -> np.ndarray:
    """Fresh memory, uint8 [size], with undefined content."""
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]
