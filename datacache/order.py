"""The order in which samples are read: a permutation for each epoch, divided into batches and among ranks.

The permutation depends only on seed and epoch. Ranks only cut it: a global batch is the next P * batch_size samples of
it, of which rank r takes the r-th part. So the position in an epoch is a number of samples, and a run can resume from
it on any number of ranks.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


def permutation(samples: int, seed: int, epoch: int) -> np.ndarray:
    """A random order of all samples, the same on every machine and with every version of NumPy.

    Args:
        samples: n, the number of samples.
        seed: not negative.
        epoch: not negative.

    Returns:
        int64 [n]: the places of n random 64-bit words (from Philox, a stream that NumPy promises not to change) in
        ascending order.
    """
    if min(samples, seed, epoch) < 0:
        raise ValueError(f"Expected no negative numbers, got samples={samples}, seed={seed}, epoch={epoch}.")
    words = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(samples)
    return np.argsort(words, kind="stable")


def word(seed: int, epoch: int) -> int:
    """A number in [0, 2**63) for what is drawn at random in an epoch, independent of its order."""
    return int(np.random.SeedSequence([seed, epoch, 1]).generate_state(1, np.uint64)[0] >> 1)


def chosen(indices: Any, samples: int) -> np.ndarray:
    """The samples that a user has chosen.

    Args:
        indices: integers of any shape but [], or a mask, bool [samples].
        samples: how many there are.

    Returns:
        int64 [n], in the order in which the array is read, row by row.

    Raises:
        ValueError: if it is something else, such as floats or a mask of another length.
        IndexError: if it is empty or a sample does not exist.
    """
    given = np.asarray(indices)
    if given.size == 0:
        raise IndexError(f"Expected indices in [0, {samples}), at least one, got {given}.")
    if given.dtype == bool:
        return _of_mask(given, samples)
    if given.dtype.kind not in "iu" or given.ndim == 0:
        raise ValueError(
            f"Expected indices as an array of integers, or a mask of {samples} booleans, got {given.dtype} of shape "
            f"{given.shape}: round or convert other numbers first, and put a single index into a list."
        )
    if given.min() < 0 or given.max() >= samples:
        raise IndexError(f"Expected indices in [0, {samples}), at least one, got {given}.")
    return given.reshape(-1).astype(np.int64)


def _of_mask(mask: np.ndarray, samples: int) -> np.ndarray:
    if mask.shape != (samples,):
        raise ValueError(
            f"Expected a mask of shape ({samples},), a boolean for each sample, got {mask.shape}: for some samples "
            "only, pass their indices."
        )
    if not mask.any():
        raise IndexError(f"Expected a mask that chooses at least one of {samples} samples, got none.")
    return np.flatnonzero(mask)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The batches of an epoch, or of what is left of it.

    Attributes:
        order: int64 [n], the samples of the epoch.
        batch_size: per rank.
        ranks: P.
        start: position of the first sample: the number of samples of the epoch read before.
        drop_remainder: leave out the last global batch if it is not full. Otherwise it is divided evenly: the first
            ranks may get one sample more than the others.
        carry: leave the last global batch to the next epoch if it has fewer samples than there are ranks, which is an
            error otherwise.
        word: for what is drawn at random; see `word`.
        weights: float32 [n], 0 for each sample that only fills a batch and 1 for others; None if all count.
    """

    order: np.ndarray
    batch_size: int
    ranks: int
    start: int = 0
    drop_remainder: bool = False
    carry: bool = False
    word: int = 0
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.ranks < 1:
            raise ValueError(f"Expected at least 1 sample and 1 rank, got {self.batch_size} and {self.ranks}.")
        if not 0 <= self.start <= self._samples:
            raise ValueError(f"Expected a position in [0, {self._samples}], got {self.start}.")
        if self._is_too_short and not self.drop_remainder and not self.carry:
            raise ValueError(
                f"The last batch has {self._rest} samples for {self.ranks} ranks, so some would have none and the "
                "others would wait for them: choose another batch_size, drop it with drop_remainder=True, or fill it "
                "with pad=True."
            )

    def __len__(self) -> int:
        """The number of batches that each rank reads."""
        left = len(self.order) - self.start
        return left // self._global_batch + (not self.has_equal_batches)

    @property
    def has_equal_batches(self) -> bool:
        """Whether every batch has batch_size samples."""
        return self.drop_remainder or self._rest == 0 or self.left_over > 0

    @property
    def left_over(self) -> int:
        """The number of samples that are left to the next epoch."""
        return self._rest if self._is_too_short and not self.drop_remainder else 0

    def indices(self, step: int, rank: int) -> np.ndarray:
        """The samples of a rank's batch, int64."""
        begin, end = self.span(step, rank)
        return self.order[begin:end]

    def span(self, step: int, rank: int) -> tuple[int, int]:
        """Where in the order a rank's batch begins and ends."""
        if not 0 <= step < len(self) or not 0 <= rank < self.ranks:
            raise IndexError(f"There is no batch {step} of {len(self)} for rank {rank} of {self.ranks}.")
        begin = self.start + step * self._global_batch
        count = min(self._global_batch, len(self.order) - begin)
        share, more = divmod(count, self.ranks)
        first = begin + rank * share + min(rank, more)
        return first, first + share + (rank < more)

    def position(self, steps: int) -> int:
        """Number of samples of the epoch that all ranks together have read after this many steps of this schedule."""
        return min(self.start + steps * self._global_batch, self._samples)

    @classmethod
    def carrying(
        cls, samples: int, seed: int, batch_size: int, ranks: int, drop_remainder: bool, epoch: int, position: int
    ) -> Schedule:
        """What is left of an epoch, after what the epoch before has left, with `carry`.

        Args:
            samples: n, the number of samples.
            seed: of the order.
            batch_size: see `Schedule`.
            ranks: see `Schedule`.
            drop_remainder: see `Schedule`.
            epoch: its number.
            position: number of its samples read before; -k if the last k samples of the epoch before come first.

        Raises:
            ValueError: if there are no such samples.
        """
        order = permutation(samples, seed, epoch)
        if -samples <= position < 0:
            order = np.concatenate([permutation(samples, seed, epoch - 1)[position:], order])
            position = 0
        return cls(order, batch_size, ranks, position, drop_remainder, carry=True, word=word(seed, epoch))

    @classmethod
    def padded(cls, order: np.ndarray, batch_size: int, ranks: int, start: int = 0, word: int = 0) -> Schedule:
        """Full batches only: each rank's part of the last one is filled with a sample that counts nothing.

        That is the first one of the order. Arguments and errors as for `Schedule`.
        """
        cut = cls(order, batch_size, ranks, start, carry=True)  # checks them
        begin = len(order) - cut._rest
        parts = np.array_split(order[begin:], ranks) if cut._rest else []  # as `span` divides them
        filled = [np.append(part, order[:1].repeat(batch_size - len(part))) for part in parts]
        counts = [np.ones(begin), *(np.arange(batch_size) < len(part) for part in parts)]
        weights = np.concatenate(counts).astype(np.float32)
        return cls(np.concatenate([order[:begin], *filled]), batch_size, ranks, start, word=word, weights=weights)

    @property
    def _samples(self) -> int:
        return len(self.order) if self.weights is None else int(np.count_nonzero(self.weights))

    @property
    def _global_batch(self) -> int:
        return self.batch_size * self.ranks

    @property
    def _rest(self) -> int:
        return (len(self.order) - self.start) % self._global_batch

    @property
    def _is_too_short(self) -> bool:
        """Whether the last global batch has too few samples to give each rank one."""
        return 0 < self._rest < self.ranks
