"""A simple NumPy version of a round, and of steps with averaging in between."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hvd_sparse.averaging.blocks import Blocks
from hvd_sparse.averaging.lossy import lost


class Round(NamedTuple):
    """The result of one round on the vectors of all ranks.

    Attributes:
        vectors: [P, d] float32.
        arrived: [2, P, P]: phase, sender, receiver; 1 if the block arrived, 0 from a rank to itself.
    """

    vectors: np.ndarray
    arrived: np.ndarray


def averaged(vectors: np.ndarray, round: int, losses: np.ndarray, rotate: bool) -> Round:
    """One round, block by block; losses [2, P, P] bool as drawn by `lossy.lost`."""
    ranks, size = vectors.shape
    blocks = Blocks(size, ranks)
    new = vectors.copy()
    for block in range(ranks):
        here = slice(block * blocks.length, (block + 1) * blocks.length)
        owner = blocks.owner_of(block, round, rotate)
        came = [rank for rank in range(ranks) if not losses[0, rank, owner]]
        total = vectors[came[0], here].copy()
        for rank in came[1:]:
            total += vectors[rank, here]
        mean = total / np.float32(len(came))
        for rank in range(ranks):
            if not losses[1, owner, rank]:
                new[rank, here] = mean
    arrived = (~losses).astype(np.int64) * (1 - np.eye(ranks, dtype=np.int64))
    return Round(new, arrived)


def drawn(probability: float, seed: int, round: int, ranks: int) -> np.ndarray:
    """The losses of `Lossy` in a round."""
    return lost(probability, seed, round, ranks).numpy()


def vectors(ranks: int, size: int, seed: int = 0) -> np.ndarray:
    """[P, d] float32 of any magnitude and sign, including zeros of both signs."""
    generator = np.random.default_rng(seed)
    drawn = generator.normal(size=(ranks, size)) * 10.0 ** generator.integers(-6, 6, size=(ranks, size))
    drawn[generator.random((ranks, size)) < 0.1] = -0.0
    return drawn.astype(np.float32)
