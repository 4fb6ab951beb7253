"""A simple NumPy version of spreading losses over a block (ops/datagrams/spread.h), and of a round with it."""

from __future__ import annotations

import ctypes

import numpy as np

from hvd_sparse.averaging.blocks import Blocks
from tests.ops import native

_GAMMA, _MOST_ROWS, _COLUMNS = 0x9E3779B97F4A7C15, 64, 64


def rows_of(length: int, segment: int) -> int:
    """The largest power of two, at most 64, for which a row is no shorter than a segment."""
    return min(_MOST_ROWS, 2 ** max((length // segment).bit_length() - 1, 0))


def signs(length: int, segment: int, seed: int) -> np.ndarray:
    """[n, columns] float32 of 1 and -1."""
    rows = rows_of(length, segment)
    columns = length // rows
    row, column = np.ogrid[:rows, :columns]
    index = (column // _COLUMNS * _COLUMNS + row).astype(np.uint64)
    mixed = np.uint64(seed) + (index + np.uint64(1)) * np.uint64(_GAMMA)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = (mixed ^ (mixed >> np.uint64(31))) >> (column % _COLUMNS).astype(np.uint64) & np.uint64(1)
    return np.where(bits == 1, np.float32(-1.0), np.float32(1.0))


def spread(block: np.ndarray, segment: int, seed: int) -> np.ndarray:
    """The transform of a block, [length] float32."""
    return _transformed(block, segment, lambda rows: _sums_and_differences(rows * signs(len(block), segment, seed)))


def gather_up(block: np.ndarray, segment: int, seed: int) -> np.ndarray:
    """The inverse of `spread`."""
    rows_there = np.float32(rows_of(len(block), segment))
    return _transformed(
        block, segment, lambda rows: _sums_and_differences(rows) / rows_there * signs(len(block), segment, seed)
    )


def _transformed(block, segment, change):
    count = rows_of(len(block), segment)
    if count == 1:
        return block.copy()
    end = len(block) // count * count
    return np.concatenate([change(block[:end].reshape(count, -1)).reshape(-1), block[end:]])


def _sums_and_differences(rows: np.ndarray) -> np.ndarray:
    count, half = len(rows), 1
    while half < count:
        pairs = rows.reshape(count // (2 * half), 2, half, -1)
        above, below = pairs[:, 0], pairs[:, 1]
        rows = np.stack([above + below, above - below], axis=1).reshape(count, -1)
        half *= 2
    return rows


def seed_of(key: bytes, round: int) -> int:
    """The seed of a round's signs."""
    master = ctypes.create_string_buffer(16)
    message = np.array([2**32 - 1, 2**32 - 1, round, 0], np.uint32).tobytes()
    native.library().hvds_siphash(key, message, ctypes.c_int64(len(message)), master)
    return int.from_bytes(master.raw[:8], "little")


def each_block(change, vector: np.ndarray, blocks: Blocks, segment: int, seed: int) -> np.ndarray:
    """A vector [d] with each block transformed by `spread` or `gather_up`."""
    made = vector.copy()
    for block in range(blocks.ranks):
        here = slice(block * blocks.length, min((block + 1) * blocks.length, blocks.size))
        made[here] = change(vector[here], segment, (seed + block) % 2**64)
    return made
