"""Rows of numbers and categories with a yes or no as the label, in memory: parts, batches and digests."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

RARE = 0  # number shared by all categories without a number of their own


class Table(NamedTuple):
    """Rows.

    Attributes:
        numbers: float32 [rows, features].
        categories: int32 [rows, fields], each a row of its field's embedding table.
        labels: float32 [rows], 0 or 1.
        groups: int32 [rows]; rows of one group are similar, and are in the same part.
    """

    numbers: np.ndarray
    categories: np.ndarray
    labels: np.ndarray
    groups: np.ndarray

    def rows(self, chosen: np.ndarray) -> Table:
        """Rows selected by a mask or by their numbers."""
        return Table(*(column[chosen] for column in self))


class Batch(NamedTuple):
    """The rows of one step, as in `Table`."""

    numbers: np.ndarray
    categories: np.ndarray
    labels: np.ndarray


class Rows(Protocol):
    """Rows that are read in batches."""

    def __len__(self) -> int:
        """The number of rows."""

    def epoch(self, number: int, batch: int, rank: int, ranks: int, seed: int) -> Iterator[Batch]:
        """A rank's full batches of an epoch, equally many on all ranks; each epoch has its own order."""

    def share(self, batch: int, rank: int, ranks: int) -> Iterator[Batch]:
        """A rank's share of all rows, each on one rank, in their order."""


class InMemory:
    """`Rows` of a table."""

    def __init__(self, table: Table):
        self.table = table

    def __len__(self) -> int:
        return len(self.table.labels)

    def epoch(self, number: int, batch: int, rank: int, ranks: int, seed: int) -> Iterator[Batch]:
        """A rank's part of every global batch; all ranks use the same order of all rows."""
        order = np.random.default_rng([seed, number]).permutation(len(self))
        whole = batch * ranks
        for begin in range(0, len(self) - whole + 1, whole):
            yield self._batch(order[begin + rank * batch : begin + (rank + 1) * batch])

    def share(self, batch: int, rank: int, ranks: int) -> Iterator[Batch]:
        """See `Rows`."""
        own = np.arange(rank, len(self), ranks)
        for begin in range(0, len(own), batch):
            yield self._batch(own[begin : begin + batch])

    def _batch(self, chosen: np.ndarray) -> Batch:
        return Batch(*self.table.rows(chosen)[:3])


class Task(NamedTuple):
    """What is learnt, the same on every rank.

    Attributes:
        train: training rows.
        validation: rows whose groups are not in `train`.
        test: rows whose groups are not in the other parts.
        features: number of numeric features per row.
        sizes: rows of each field's embedding table.
        origin: one line that says what the data are made of.
        digest: digest of the rows and of their source.
    """

    train: Rows
    validation: Rows
    test: Rows
    features: int
    sizes: tuple[int, ...]
    origin: str
    digest: str


def numbered(
    column: Sequence[str], groups: np.ndarray, train: np.ndarray, fewest: int, largest: int
) -> tuple[np.ndarray, int]:
    """Numbers the categories of a field; returns the number of each row, and how many numbers there are.

    A category gets its own number if enough training groups have it, the most frequent ones first. All others are
    `RARE`, as embeddings that were hardly trained would be noise in parts with other groups.

    Args:
        column: category of each row.
        groups: group of each row.
        train: mask of the training rows.
        fewest: minimum number of training groups.
        largest: maximum rows of the table, that of RARE included.
    """
    seen = set(zip(np.asarray(column, object)[train].tolist(), groups[train].tolist(), strict=True))
    counted = collections.Counter(category for category, _ in seen)
    known = sorted((category for category, count in counted.items() if count >= fewest), key=lambda c: (-counted[c], c))
    own = {category: number for number, category in enumerate(known[: largest - 1], start=RARE + 1)}
    return np.array([own.get(category, RARE) for category in column], np.int32), len(own) + 1


def digest(*tables: Table) -> str:
    """A digest of tables: SHA-256, hexadecimal."""
    state = hashlib.sha256()
    for column in (column for table in tables for column in table):
        state.update(f"{column.dtype.str}{column.shape}".encode())
        state.update(np.ascontiguousarray(column).tobytes())
    return state.hexdigest()
