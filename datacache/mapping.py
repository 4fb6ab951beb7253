"""Shared memory: a file on a tmpfs, reserved and mapped, in huge pages if the kernel provides them.

The rows of a batch are scattered over it. With pages of 4 KB the processor has to look up an address for every 4 KB of
a row; one page of 2 MB covers many rows. A tmpfs has small pages unless it was mounted otherwise, but since Linux 6.1 a
process that has mapped a file there may ask for huge ones (MADV_COLLAPSE), whatever the system's settings.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import time
from collections.abc import Callable

import numpy as np

_HUGE = 2 << 20
_PIECE = 64 * _HUGE  # huge pages are requested for this many bytes at a time
_PATIENCE = 10.0  # seconds after which the rest stays in small pages: fragmented memory yields huge ones slowly
_COLLAPSE, _FIXED = 25, 0x10  # MADV_COLLAPSE and MAP_FIXED, which Python's mmap does not name


def reserve(descriptor: int, size: int) -> None:
    """Allocates zeroed pages for all of an empty file on a tmpfs.

    Raises:
        OSError: if the device does not have enough.
    """
    device = os.fstatvfs(descriptor)
    if device.f_blocks and device.f_bavail * device.f_frsize < size:  # do not fill it to find out: others use it
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, size)
    for begin in range(0, size - _HUGE + 1, _HUGE):
        os.pwrite(descriptor, b"\0", begin)  # the kernel only makes a huge page of a range that already has a page
    with contextlib.suppress(OSError):  # an older kernel, or no huge pages left: small ones will do
        _make_huge(descriptor, size)
    os.posix_fallocate(descriptor, 0, size)


def map_shared(descriptor: int, size: int) -> np.ndarray:
    """Maps a file, uint8 [size], for as long as the result is referenced; at an address that allows huge pages."""
    return np.asarray(_Mapped(descriptor, size))


class _Mapped:
    """A file mapped into a larger range of addresses, to begin at a multiple of a huge page; NumPy's base object.

    Attributes:
        addresses: the range that the file's place was taken from; the rest of it must not be touched.
        begin: where the file is in the range.
    """

    def __init__(self, descriptor: int, size: int):
        """Takes the open file and its size in bytes."""
        self.addresses = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE, prot=0)
        first = np.frombuffer(self.addresses, np.uint8).ctypes.data
        self.begin = -first % _HUGE
        place, protection = first + self.begin, mmap.PROT_READ | mmap.PROT_WRITE
        if _native_mmap()(place, size, protection, mmap.MAP_SHARED | _FIXED, descriptor, 0) != place:
            raise OSError(ctypes.get_errno(), f"A file of {size} bytes cannot be mapped")
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (place, False)}


def _make_huge(descriptor: int, size: int) -> None:
    mapped, until = _Mapped(descriptor, size), time.monotonic() + _PATIENCE
    for begin in range(0, size - _HUGE + 1, _PIECE):
        if time.monotonic() > until:
            return
        mapped.addresses.madvise(_COLLAPSE, mapped.begin + begin, min(_PIECE, size - begin))


@functools.cache
def _native_mmap() -> Callable[..., int]:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    return function
