"""The layout of decoded samples, and how a level's record holds one.

If all samples have the same shape, a record's payload is just the array's bytes. If shapes vary, it begins with the
array's own shape, one little-endian uint64 for each dimension.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from datacache.levels import DamagedRecordError

Shape = tuple[int | None, ...]


class Layout(NamedTuple):
    """What all decoded samples have in common.

    Attributes:
        dtype: its name.
        shape: with None for a dimension that varies from sample to sample.
    """

    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"

    @property
    def varies(self) -> bool:
        """Whether samples differ in shape."""
        return None in self.shape

    @property
    def size(self) -> int:
        """Bytes of a sample, if all have the same shape."""
        known = [each for each in self.shape if each is not None]
        assert len(known) == len(self.shape), "samples of varying shape have no common size"
        return math.prod(known) * np.dtype(self.dtype).itemsize

    def admits(self, other: Layout) -> bool:
        """Whether a sample of the other layout, all of whose dimensions are known, fits this one."""
        return self.dtype == other.dtype and _matches(self.shape, other.shape)

    def pack(self, array: np.ndarray) -> bytes:
        """The payload for an array of this layout."""
        return self._head.pack(*array.shape) + array.tobytes() if self.varies else array.tobytes()

    def unpack(self, payload: bytes) -> np.ndarray:
        """The array of a payload, read-only and without a copy.

        Raises:
            DamagedRecordError: if the payload is not what `pack` makes of such an array.
        """
        shape = self.shape_in(payload)
        return np.ndarray(shape, self.dtype, payload, self._head.size if self.varies else 0)

    def shape_in(self, payload: bytes) -> tuple[int, ...]:
        """The shape of a payload's array; errors as from `unpack`."""
        if not self.varies:
            if len(payload) != self.size:
                raise DamagedRecordError(f"it has {len(payload)} bytes, which is no {self}")
            return self.shape  # type: ignore[return-value]
        head = self._head
        if len(payload) < head.size:
            raise DamagedRecordError(f"it has {len(payload)} bytes, less than its shape takes")
        shape = head.unpack_from(payload)
        size = math.prod(shape) * np.dtype(self.dtype).itemsize
        if not _matches(self.shape, shape) or len(payload) != head.size + size:
            raise DamagedRecordError(f"it has {len(payload)} bytes and shape {list(shape)}, which is no {self}")
        return shape

    @property
    def _head(self) -> struct.Struct:
        """The header of a payload if shapes vary: a multiple of 8 bytes, so that the numbers after it are aligned."""
        return struct.Struct(f"<{len(self.shape)}Q")


def parse_shape(shape: Sequence[int | None]) -> Shape:
    """Checks and converts a shape given by a user.

    Raises:
        ValueError: if it is not a sequence of sizes and None.
    """
    try:
        made = tuple(None if each is None else operator.index(each) for each in shape)
    except TypeError:
        made = (-1,)
    if any(each is not None and each < 0 for each in made):
        raise ValueError(
            f"Expected a shape of decoded samples, with None for each dimension that varies, such as (None, None, 3), "
            f"got {shape!r}."
        )
    return made


def common(shape: Shape, other: Shape) -> Shape | None:
    """The shape that admits both, with None where they differ; None if their numbers of dimensions differ."""
    if len(shape) != len(other):
        return None
    return tuple(one if one == two else None for one, two in zip(shape, other, strict=True))


def _matches(wanted: Shape, shape: Shape) -> bool:
    return len(wanted) == len(shape) and all(one is None or one == two for one, two in zip(wanted, shape, strict=True))
