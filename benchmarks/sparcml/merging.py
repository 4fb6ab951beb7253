"""Our kernels for sparse streams and QSGD, called through their C interfaces with reused buffers."""

from __future__ import annotations

import ctypes

import numpy as np

from benchmarks.passes.selection import aligned
from hvd_sparse import ops

_FLOAT32, _SUM, _NORM_MAX = 0, 0, 0
_SEED = 1


class _Rows(ctypes.Structure):
    _fields_ = [("size", ctypes.c_int64), ("width", ctypes.c_int64), ("dtype", ctypes.c_int)]


class _Stream(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("count", "indices", "values", "words")]


class _Coding(ctypes.Structure):
    _fields_ = [("bits", ctypes.c_int), ("bucket", ctypes.c_int64)]


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def message(indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A sparse message of float32 numbers."""
    count = indices.size
    words = aligned(2 + 2 * (count + count % 2), np.int32)
    words[:2] = 0, count
    words[2 : 2 + count] = indices
    begin = 2 + count + count % 2
    words[begin : begin + count] = values.view(np.int32)
    return words


class Merger:
    """ops/streams/merge.h: one set of messages of flat float32 vectors, summed, reading and checking included."""

    def __init__(self, messages: list[np.ndarray], size: int, dense_above: int):
        self._library = ops.kernels()
        for name in ("hvds_stream_reduce", "hvds_stream_reduce_room"):
            getattr(self._library, name).restype = ctypes.c_int64
        self._messages = messages
        self._rows = _Rows(size, 1, _FLOAT32)
        self._streams = (_Stream * len(messages))()
        self._number, self._limit = ctypes.c_int64(len(messages)), ctypes.c_int64(dense_above)
        self._read()
        room = self._library.hvds_stream_reduce_room(self._streams, self._number, ctypes.byref(self._rows), self._limit)
        self.words = aligned(room, np.int32)
        self.used = 0

    def run(self, threads: int | None = None) -> None:
        self._read()
        self.used = self._library.hvds_stream_reduce(
            self._streams,
            self._number,
            ctypes.byref(self._rows),
            _SUM,
            self._limit,
            _pointer(self.words),
            ctypes.c_void_p(threads),
        )

    def _read(self) -> None:
        at = ctypes.c_int64()
        for words, stream in zip(self._messages, self._streams, strict=True):
            fault = self._library.hvds_stream_read(
                _pointer(words),
                ctypes.c_int64(words.size),
                ctypes.byref(self._rows),
                ctypes.byref(stream),
                ctypes.byref(at),
            )
            if fault != 0:
                raise RuntimeError(f"the kernel refused a message with code {fault} at {at.value}")


class Coder:
    """ops/quantize/quantize.h for a vector of one size."""

    def __init__(self, size: int, bits: int, bucket: int = 1024):
        self._library = ops.kernels()
        for name in ("hvds_quantize", "hvds_quantize_bytes", "hvds_quantize_buckets"):
            getattr(self._library, name).restype = ctypes.c_int64
        self._coding = _Coding(bits, bucket)
        self._size = ctypes.c_int64(size)
        coding = ctypes.byref(self._coding)
        self.codes = aligned(self._library.hvds_quantize_bytes(self._size, coding), np.uint8)
        self.scales = aligned(self._library.hvds_quantize_buckets(self._size, coding))
        self.levels = 2 ** (bits - 1) - 1
        self.bucket = bucket

    def encode(self, values: np.ndarray, threads: int | None = None) -> None:
        faulty = self._library.hvds_quantize(
            _pointer(values),
            self._size,
            ctypes.byref(self._coding),
            _NORM_MAX,
            ctypes.c_uint64(_SEED),
            _pointer(self.codes),
            _pointer(self.scales),
            ctypes.c_void_p(threads),
        )
        if faulty != -1:
            raise RuntimeError(f"the kernel reported bucket {faulty} as faulty")

    def decode(self, values: np.ndarray, threads: int | None = None) -> None:
        self._library.hvds_dequantize(
            _pointer(self.codes),
            _pointer(self.scales),
            self._size,
            ctypes.byref(self._coding),
            _pointer(values),
            ctypes.c_void_p(threads),
        )
