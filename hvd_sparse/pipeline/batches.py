"""Batches, cut into micro-batches."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_DIGESTED = 4096  # bytes of each input from which stages tell that they have the same batch


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """A part of a batch.

    Attributes:
        data: inputs, targets and sample weights.
        share: the share of the batch's samples that it holds.
    """

    data: Sequence[Any]
    share: float

    @functools.cached_property
    def digest(self) -> int:
        """A number from the beginnings of all inputs, by which stages tell whether they have the same batch."""
        digest = 0
        for each in tf.nest.flatten(self.data[0]):
            values = np.ascontiguousarray(each).reshape(-1)
            if values.dtype.hasobject:
                continue  # such as strings
            digest = zlib.crc32(values[: max(1, _DIGESTED // max(1, values.itemsize))].tobytes(), digest)
        return digest


def cut(data: Sequence[Any], micro_batches: int) -> list[MicroBatch]:
    """Cuts a batch into this many micro-batches of about equal size, or into single samples if it has fewer."""
    leaves = tf.nest.flatten(data)
    rows = int(leaves[0].shape[0])
    count = max(1, min(micro_batches, rows))
    ends = [rows * number // count for number in range(count + 1)]
    sizes = [end - begin for begin, end in itertools.pairwise(ends)]
    pieces = [_pieces(each, sizes) for each in leaves]
    packed = [tf.nest.pack_sequence_as(data, list(each)) for each in zip(*pieces, strict=True)]
    return [MicroBatch(own, size / rows) for own, size in zip(packed, sizes, strict=True)]


def _pieces(values: Any, sizes: list[int]) -> Sequence[Any]:
    """The parts of one input, one for each micro-batch."""
    if values is None or len(sizes) == 1:
        return [values] * len(sizes)
    if isinstance(values, tf.Tensor):
        return tf.split(values, sizes)
    ends = [0, *itertools.accumulate(sizes)]
    return [values[begin:end] for begin, end in itertools.pairwise(ends)]  # such as ragged ones
