"""libsvm files, parsed by scikit-learn, of which each rank reads its share of the lines.

Lines are `label index:value index:value ...`: the label -1, 0 or 1 (0 counts as -1), indices from 1 and ascending, all
values finite. The bytes of all files together are divided evenly over the ranks, and each division is moved to the next
beginning of a line, so that each line is read by exactly one rank, for any number of ranks. (scikit-learn's own byte
ranges read a line twice if no line begins in a range.)
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.datasets import load_svmlight_file

_BLOCK = 2**25  # bytes parsed at a time
_SHOWN = 60  # bytes of a bad line in an error message
_FAULTS = (ValueError, OverflowError)  # what scikit-learn's reader raises


class Samples(NamedTuple):
    """Samples and their labels.

    Attributes:
        matrix: CSR float64 [samples, features]; feature n of a file is column n - 1.
        labels: float64 [samples], -1 or 1.
    """

    matrix: sparse.csr_matrix
    labels: np.ndarray


def read(paths: Sequence[Path], rank: int = 0, size: int = 1, features: int | None = None) -> Samples:
    """Reads one rank's share of the lines of all files.

    Args:
        paths: the files, in an order that is the same on every rank.
        rank: index of this share.
        size: number of shares.
        features: number of columns; by default the share's greatest index.

    Raises:
        ValueError: if a line is not a sample or has an index above `features`; names file and line.
        OSError: if a file cannot be read.
    """
    total = sum(path.stat().st_size for path in paths)
    parts, begin = [], 0
    for path in paths:
        length = path.stat().st_size
        share = [min(max(total * each // size - begin, 0), length) for each in (rank, rank + 1)]
        parts += [_parsed(path, *block, features) for block in _blocks(path, *share)]
        begin += length
    return _joined(parts, features)


def _blocks(path: Path, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The lines that begin within a range of bytes, in blocks of whole lines, each with its position."""
    if begin == end:
        return
    with open(path, "rb") as file:
        end = _next_line(file, end)
        position = _next_line(file, begin)
        file.seek(position)
        while position < end:
            block = file.read(min(_BLOCK, end - position))
            if position + len(block) < end:
                block += file.readline()
            yield position, block
            position += len(block)


def _next_line(file: BinaryIO, position: int) -> int:
    """The position of the first beginning of a line at or after a position."""
    if position == 0:
        return 0
    file.seek(position - 1)
    file.readline()
    return file.tell()


def _parsed(path: Path, position: int, block: bytes, features: int | None) -> Samples:
    try:
        return _parse(block, features)
    except _FAULTS:
        _refuse_first_bad_line(path, position, block, features)
        raise


def _parse(block: bytes, features: int | None) -> Samples:
    matrix, labels = load_svmlight_file(io.BytesIO(block), n_features=features, zero_based=False)
    if not np.isin(labels, (-1, 0, 1)).all():
        raise ValueError("The label is not -1, 0 or 1.")
    if not np.isfinite(matrix.data).all():
        raise ValueError("A value is not finite.")
    return Samples(matrix, np.where(labels > 0, 1.0, -1.0))


def _refuse_first_bad_line(path: Path, position: int, block: bytes, features: int | None) -> None:
    for line in io.BytesIO(block):
        try:
            _parse(line, features)
        except _FAULTS as fault:
            shown = line[:_SHOWN].decode(errors="replace").rstrip()
            limit = "" if features is None else f" to {features}"
            raise ValueError(
                f"{path}, line {_line_number(path, position)}: expected `label index:value ...` with a label of -1, 0 "
                f"or 1, ascending indices from 1{limit} and finite values, got {shown!r} ({str(fault).rstrip('.')}). "
                "Correct or remove the line."
            ) from None
        position += len(line)


def _line_number(path: Path, position: int) -> int:
    """The number, from 1, of the line that begins at a position."""
    number = 1
    with open(path, "rb") as file:
        while position > 0:
            block = file.read(min(_BLOCK, position))
            number += block.count(b"\n")
            position -= len(block)
    return number


def _joined(parts: Sequence[Samples], features: int | None) -> Samples:
    width = max((part.matrix.shape[1] for part in parts), default=0) if features is None else features
    if not parts:
        return Samples(sparse.csr_matrix((0, width)), np.zeros(0))
    for part in parts:
        part.matrix.resize(part.matrix.shape[0], width)
    matrix = sparse.vstack([part.matrix for part in parts], format="csr")
    return Samples(matrix, np.concatenate([part.labels for part in parts]))
