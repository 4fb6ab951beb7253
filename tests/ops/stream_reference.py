"""Sparse streams in NumPy: slow, simple, and equal to the library bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

NEUTRAL = {"sum": 0.0, "max": -np.inf, "min": np.inf, "product": 1.0}
FLOATS = [np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)]


class Stream(NamedTuple):
    """The rows that are present: indices [k] in any order, values [k, width]."""

    indices: np.ndarray
    values: np.ndarray


def combine(a: np.ndarray, b: np.ndarray, op: str) -> np.ndarray:
    """One operation, rounded to the dtype."""
    with np.errstate(all="ignore"):
        if op == "sum":
            return a + b
        if op == "product":
            return a * b
        return np.where((b > a if op == "max" else b < a) | np.isnan(b), b, a)


def accumulate(streams: Iterable[Stream], size: int, width: int, dtype: np.dtype, op: str):
    """The whole vector [size, width] and which rows are present [size], added row by row and stream by stream."""
    whole = np.full((size, width), NEUTRAL[op], dtype)
    there = np.zeros(size, bool)
    for stream in streams:
        for index, row in zip(stream.indices, stream.values, strict=True):
            whole[index] = combine(whole[index], row, op)
            there[index] = True
    return whole, there


def delta(size: int, width: int, dtype: np.dtype) -> int:
    row = width * dtype.itemsize
    return size * row // (4 + row)


def message(whole: np.ndarray, there: np.ndarray, dense_above: int | None = None) -> np.ndarray:
    """The words of a vector's message, which is dense if more than `dense_above` rows are present."""
    size, width = whole.shape
    limit = delta(size, width, whole.dtype) if dense_above is None else dense_above
    count = int(there.sum())
    if count > limit:
        return np.concatenate([np.array([1, size], np.int32), words(whole)])
    indices = np.flatnonzero(there).astype(np.int32)
    return np.concatenate([np.array([0, count], np.int32), words(indices), words(whole[there])])


def words(array: np.ndarray) -> np.ndarray:
    """The bytes as an even number of words, padded with zeros."""
    data = array.tobytes()
    return np.frombuffer(data + bytes(-len(data) % 8), np.int32)


def reduced(streams: Iterable[Stream], size: int, width: int, dtype: np.dtype, op: str, dense_above: int | None = None):
    """The message of several streams combined."""
    return message(*accumulate(streams, size, width, dtype, op), dense_above)


def values(random: np.random.Generator, count: int, width: int, dtype: np.dtype) -> np.ndarray:
    """Finite values of many magnitudes, with ones and zeros of both signs."""
    low, high = {2: (-6, 3), 4: (-40, 30), 8: (-300, 250)}[dtype.itemsize]
    drawn = 10.0 ** random.uniform(low, high, (count, width)) * random.choice([-1.0, 1.0], (count, width))
    few = np.array([0.0, -0.0, 1.0])[random.integers(0, 3, (count, width))]
    return np.where(random.random((count, width)) < 0.8, drawn, few).astype(dtype)


def stream(random: np.random.Generator, size: int, width: int, dtype: np.dtype, density: float) -> Stream:
    """Unique, ascending indices."""
    indices = np.flatnonzero(random.random(size) < density).astype(np.int32)
    return Stream(indices, values(random, len(indices), width, dtype))


def index_sets(random: np.random.Generator, size: int) -> dict[str, list[np.ndarray]]:
    """The ascending indices of several ranks, by the name of the pattern."""
    everything = np.arange(size, dtype=np.int32)
    some = np.flatnonzero(random.random(size) < 0.3).astype(np.int32)
    nothing = everything[:0]
    return {
        "overlapping": [np.flatnonzero(random.random(size) < share).astype(np.int32) for share in (0.2, 0.1, 0.4, 0.2)],
        "disjoint": [everything[rank::7] for rank in range(3)],
        "consecutive": np.array_split(everything[: size // 2], 3),
        "identical": [some, some, some],
        "empty": [nothing, nothing],
        "full": [everything, everything],
        "one is empty": [some, nothing, some],
        "one is full": [some, everything, some],
        "ends": [everything[:1], everything[-1:], everything[-1:]],
        "alone": [some],
    }
