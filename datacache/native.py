"""The native library through ctypes, loaded at first use; its functions run without Python's global lock."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import numpy as np

_LIBRARY = Path(__file__).with_name("_native.so")
_U64, _I64, _POINTER = ctypes.c_uint64, ctypes.c_int64, ctypes.c_void_p


class SlabHandle(ctypes.Structure):
    """datacache_slab: where a slab is mapped, its total bytes, the sample in slot 0, and its number of slots."""

    _fields_ = [("base", _POINTER), ("bytes", _U64), ("first", _U64), ("slots", _U64)]


_SLAB = ctypes.POINTER(SlabHandle)
_FUNCTIONS = {  # name: (result, arguments), as in ops/datacache/*.h
    "datacache_xxh3": (_U64, [_POINTER, ctypes.c_size_t, _U64]),
    "datacache_xxh3_copy": (_U64, [_POINTER, _POINTER, ctypes.c_size_t, _U64]),
    "datacache_crc32c": (ctypes.c_uint32, [_POINTER, ctypes.c_size_t]),
    "datacache_tree_check": (ctypes.c_char_p, [ctypes.c_int, _U64]),
    "datacache_tree_mend_value": (ctypes.c_char_p, [ctypes.c_int, _U64, _POINTER, _U64]),
    "datacache_slab_overhead": (_U64, [_U64]),
    "datacache_slab_footprint": (_U64, [_U64]),
    "datacache_slab_format": (None, [_SLAB]),
    "datacache_slab_used": (_U64, [_SLAB]),
    "datacache_slab_publish": (ctypes.c_int, [_SLAB, _U64, _POINTER, _U64, _I64]),
    "datacache_slab_lengths": (None, [_SLAB, _POINTER, _U64, _POINTER]),
    "datacache_slab_forget": (None, [_SLAB, _U64]),
    "datacache_records_checksums": (None, [_POINTER, _U64, _U64, _POINTER, _POINTER, _POINTER]),
    "datacache_records_place": (_U64, [_POINTER, _U64, _U64, *[_POINTER] * 6]),
    "datacache_slab_gather": (_U64, [_SLAB, _POINTER, _U64, _POINTER, _U64, _POINTER, _POINTER]),
}


@functools.cache
def library() -> ctypes.CDLL:
    """The library, with the types of its functions set.

    Raises:
        ImportError: if it is not compiled.
    """
    if not _LIBRARY.exists():
        raise ImportError(
            f"datacache's native library is not compiled ({_LIBRARY} is missing): run `make build` or `python setup.py "
            "build_ext --inplace` in the source, or install the package with `pip install .`."
        )
    loaded = ctypes.CDLL(str(_LIBRARY))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def crc32c(data: bytes) -> int:
    """CRC-32C of bytes, not masked."""
    return library().datacache_crc32c(data, len(data))


def xxh3(data: bytes, seed: int = 0) -> int:
    """XXH3, 64 bits, of bytes."""
    return library().datacache_xxh3(data, len(data), seed)


def tree_fault(file: int, page_bytes: int) -> str | None:
    """What is wrong with an open LMDB file that does not change meanwhile; None if nothing is."""
    fault = library().datacache_tree_check(file, page_bytes)
    return None if fault is None else fault.decode()


def mend_value(file: int, page_bytes: int, key: bytes) -> str | None:
    """Repairs a damaged value so that LMDB can delete it; returns why that is impossible, None if it is done."""
    fault = library().datacache_tree_mend_value(file, page_bytes, key, len(key))
    return None if fault is None else fault.decode()


def address(array: np.ndarray) -> int:
    """The address of a contiguous array's elements.

    Raises:
        ValueError: if it is not contiguous.
    """
    if not array.flags.c_contiguous:
        raise ValueError(f"Expected a contiguous array, got strides {array.strides} for shape {array.shape}.")
    return array.ctypes.data
