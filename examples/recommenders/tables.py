"""Rows of numbers and categories with a yes or no, in memory: parts, batches, digests."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

RARE = 0  # the number of all categories that have none of their own


class Table(NamedTuple):
    """Rows.

    Attributes:
        numbers: float32 [rows, features].
        categories: int32 [rows, fields], each a row of its field's table of embeddings.
        labels: float32 [rows], 0 or 1.
        groups: int32 [rows]; rows of one group are alike, and stand in one part.
    """

    numbers: np.ndarray
    categories: np.ndarray
    labels: np.ndarray
    groups: np.ndarray

    def rows(self, chosen: np.ndarray) -> Table:
        """Those rows, by a mask or by their numbers."""
        return Table(*(column[chosen] for column in self))


class Batch(NamedTuple):
    """Rows of one step, as of `Table`."""

    numbers: np.ndarray
    categories: np.ndarray
    labels: np.ndarray


class Rows(Protocol):
    """Rows that come in batches."""

    def __len__(self) -> int:
        """How many."""

    def epoch(self, number: int, batch: int, rank: int, ranks: int, seed: int) -> Iterator[Batch]:
        """A rank's full batches of an epoch, equally many on all ranks, in an order of its own."""

    def share(self, batch: int, rank: int, ranks: int) -> Iterator[Batch]:
        """A rank's share of all rows, each on one rank, in their order."""


class InMemory:
    """`Rows` of a table."""

    def __init__(self, table: Table):
        self.table = table

    def __len__(self) -> int:
        return len(self.table.labels)

    def epoch(self, number: int, batch: int, rank: int, ranks: int, seed: int) -> Iterator[Batch]:
        """The same order of all rows on every rank, of which each takes its part of every batch."""
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
        train: rows.
        validation: rows of which no group is in `train`.
        test: rows of which no group is in the others.
        features: how many numbers a row has.
        sizes: rows of each field's table of embeddings.
        origin: one line that says what it is made of.
        digest: of the rows and of what they were made of.
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
    """Numbers of a field's categories, and how many there are, at most `largest`.

    A category gets one where enough groups of the training part have it, those of most groups first; all others are
    `RARE`: rows of embeddings that were hardly trained would be noise to a part that has other groups.

    Args:
        column: the category of each row.
        groups: of each row.
        train: mask of the rows that are trained on.
        fewest: groups.
        largest: rows of the table, that of RARE included.
    """
    seen = set(zip(np.asarray(column, object)[train].tolist(), groups[train].tolist(), strict=True))
    counted = collections.Counter(category for category, _ in seen)
    known = sorted((category for category, count in counted.items() if count >= fewest), key=lambda c: (-counted[c], c))
    own = {category: number for number, category in enumerate(known[: largest - 1], start=RARE + 1)}
    return np.array([own.get(category, RARE) for category in column], np.int32), len(own) + 1


def digest(*tables: Table) -> str:
    """Tells tables apart: SHA-256, hexadecimal."""
    state = hashlib.sha256()
    for column in (column for table in tables for column in table):
        state.update(f"{column.dtype.str}{column.shape}".encode())
        state.update(np.ascontiguousarray(column).tobytes())
    return state.hexdigest()
