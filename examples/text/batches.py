"""Batches of sentences of similar length: all batches of a bucket have one shape, and ranks use the same buckets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from datacache import order
from examples.text.corpus import Pair
from examples.text.vocabulary import BEGIN, END, PAD, Vocabulary


class Ragged:
    """Rows of different lengths, end to end in one array.

    Args:
        rows: arrays int32 [length].
    """

    def __init__(self, rows: Sequence[np.ndarray]):
        self._tokens = np.concatenate([np.empty(0, np.int32), *rows])
        self.lengths = np.array([len(row) for row in rows], np.int64)
        self._ends = np.cumsum(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> np.ndarray:
        end = self._ends[row]
        return self._tokens[end - self.lengths[row] : end]


class Batch(NamedTuple):
    """Encoded pairs as int32 [rows, length], padded with PAD.

    Attributes:
        source: pieces, then END.
        target: BEGIN, then pieces: the decoder's input.
        labels: pieces, then END: the expected output, at each position the next piece of `target`.
    """

    source: np.ndarray
    target: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Encoded pairs.

    Attributes:
        sources: one row per pair.
        targets: one row per pair.
    """

    sources: Ragged
    targets: Ragged

    @classmethod
    def of(cls, pairs: Sequence[Pair], vocabulary: Vocabulary) -> Encoded:
        """Encodes pairs, in their order."""
        sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        return cls(Ragged(vocabulary.encode(sources)), Ragged(vocabulary.encode(targets)))

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def lengths(self) -> np.ndarray:
        """The length of each pair's longer side with BEGIN or END, int64 [n]."""
        return np.maximum(self.sources.lengths, self.targets.lengths) + 1

    def batch(self, rows: Sequence[int], length: int) -> Batch:
        """A batch of some pairs, none of them longer than `length`."""
        filled = Batch(*(np.full((len(rows), length), PAD, np.int32) for _ in Batch._fields))
        for place, row in enumerate(rows):
            _fill(filled.source[place], self.sources[row], after=END)
            _fill(filled.labels[place], self.targets[row], after=END)
            _fill(filled.target[place, 1:], self.targets[row])
        filled.target[:, 0] = BEGIN
        return filled


def _fill(room: np.ndarray, pieces: np.ndarray, after: int | None = None) -> None:
    room[: len(pieces)] = pieces
    if after is not None:
        room[len(pieces)] = after


def boundaries(longest: int, shortest: int = 8, growth: float = 1.25) -> list[int]:
    """The lengths of the buckets, in ascending order; the last one is the longest.

    Raises:
        ValueError: if the longest is shorter than the shortest, or the lengths do not grow.
    """
    if not 1 <= shortest <= longest or growth <= 1:
        raise ValueError(f"Expected lengths that grow from {shortest} to {longest}, by more than 1; got {growth}.")
    lengths = [shortest]
    while lengths[-1] < longest:
        lengths.append(min(longest, max(lengths[-1] + 1, math.ceil(lengths[-1] * growth))))
    return lengths


class TrainingBatches:
    """One rank's batches of each epoch.

    All ranks get the same number of batches, and batches of the same bucket at each step, so that no rank waits for
    longer sentences on another one. The order depends only on seed and epoch, and is divided among ranks: a global
    batch is the next P * rows pairs of a bucket, and rank r takes the r-th part of it. The last global batch of a
    bucket is filled up with pairs from the beginning of that bucket's order, so that each pair is seen at least once
    per epoch and all batches of a bucket have one shape. Pairs longer than the longest bucket are left out.

    Args:
        encoded: the same pairs on every rank.
        lengths: lengths of the buckets, ascending.
        tokens: tokens per rank and batch, padding included; a batch of length L has max(1, tokens // L) rows.
        rank: this rank.
        ranks: P.
        seed: seed of the order, not negative.

    Attributes:
        steps: number of batches per epoch.
        left_out: number of pairs that were too long.

    Raises:
        ValueError: if no pair is left, or an argument is invalid.
    """

    def __init__(self, encoded: Encoded, lengths: Sequence[int], tokens: int, rank: int, ranks: int, seed: int):
        if tokens < 1 or not 0 <= rank < ranks:
            raise ValueError(f"Expected at least 1 token and a rank of {ranks}, got {tokens} and {rank}.")
        self._encoded, self._seed, self._rank, self._ranks = encoded, seed, rank, ranks
        self._lengths = np.array(lengths)
        self._rows = np.maximum(1, tokens // self._lengths)
        self._buckets = np.searchsorted(self._lengths, encoded.lengths)  # one more bucket for pairs that are too long
        counts = np.bincount(self._buckets, minlength=len(lengths) + 1)
        self.left_out = int(counts[-1])
        self._steps = -(-counts[:-1] // (self._rows * ranks))
        self.steps = int(self._steps.sum())
        if self.steps == 0:
            raise ValueError(
                f"Expected pairs of at most {lengths[-1]} pieces, got {len(encoded)} pairs of which none is so short."
            )

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The batches of an epoch, counted from 0."""
        pairs = order.permutation(len(self._encoded), self._seed, epoch)
        steps = np.repeat(np.arange(len(self._steps)), self._steps)
        steps = steps[order.permutation(self.steps, self._seed + 1, epoch)]
        in_order = self._buckets[pairs]
        members = [pairs[in_order == bucket] for bucket in range(len(self._steps))]
        taken = np.zeros(len(members), np.int64)
        for bucket in steps:
            rows = self._rows[bucket]
            first = (taken[bucket] * self._ranks + self._rank) * rows
            taken[bucket] += 1
            own = np.take(members[bucket], np.arange(first, first + rows), mode="wrap")
            yield self._encoded.batch(own.tolist(), int(self._lengths[bucket]))


def share(encoded: Encoded, tokens: int, rank: int, ranks: int) -> Iterator[tuple[list[int], Batch]]:
    """One rank's share of an evaluation, each pair on one rank: (numbers of the pairs, their batch).

    Pairs are sorted by length, so that ranks have similar amounts of work; each batch is as long as its longest pair.
    """
    mine = np.argsort(encoded.lengths, kind="stable")[rank::ranks]
    while len(mine):
        fitting = np.arange(1, len(mine) + 1) * encoded.lengths[mine] <= tokens
        count = max(1, int(np.count_nonzero(fitting)))
        rows, mine = mine[:count].tolist(), mine[count:]
        yield rows, encoded.batch(rows, int(encoded.lengths[rows].max()))
