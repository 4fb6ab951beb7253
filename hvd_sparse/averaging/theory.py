"""What RPS does to the models of n ranks, as a matrix, and its closed forms (Yu et al. 2019, section 4.2, appendix D).

The new blocks of all ranks are linear combinations of the old ones: x_i = sum over j of W[j, i] v_j (equation 4), so
that the columns of W sum to 1. With owners drawn uniformly, or rotated, and A = 11^T / n,

    E[W W^T] = a1 I + (1 - a1) A,  E[W A W^T] = a2 I + (1 - a2) A

(equations 5 and 6). So in expectation a round leaves a1 - a2 of the sum over ranks of squared distances to the mean of
all models, and moves that mean by a squared distance of a2 / n of that sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Scalars(NamedTuple):
    """The two scalars of equations 5 and 6.

    Attributes:
        a1: of E[W W^T].
        a2: of E[W A W^T].
    """

    a1: float
    a2: float


def scalars(ranks: int, probability: float) -> Scalars:
    """The closed forms of the two scalars.

    With n ranks, p the probability of loss, q = 1 - p, E = (1 - p^n) / (n q), which is the mean of 1 / |S|,
    mu = 1 + (n - 1) q and M = mu^2 + (n - 1) p q:

        a1 = (mu E + (n - 1) p - 1) / (n - 1)
        a2 = ([M E + (n - 1) p + 2 (n mu - M) (1 - E) / (n - 1)] / n - 1) / (n - 1)

    Args:
        ranks: n, at least 2.
        probability: p, in [0, 1).

    Raises:
        ValueError: if there is no such number of ranks or probability.
    """
    n, p = ranks, probability
    if n < 2 or not 0.0 <= p < 1.0:
        raise ValueError(f"Expected 2 or more ranks and a probability in [0, 1), got {n} and {p}.")
    q = 1.0 - p
    inverse = (1.0 - p**n) / (n * q)
    mu = 1.0 + (n - 1) * q
    square = mu**2 + (n - 1) * p * q
    a1 = (mu * inverse + (n - 1) * p - 1.0) / (n - 1)
    kept = 2.0 * (n * mu - square) * (1.0 - inverse) / (n - 1)
    a2 = ((square * inverse + (n - 1) * p + kept) / n - 1.0) / (n - 1)
    return Scalars(a1, a2)


def mixing_matrices(lost: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """The matrices W of many blocks.

    Args:
        lost: [..., 2, n, n] bool: phase, sender, receiver, as in `lossy.lost`.
        owners: [...] integers, the rank that owns the block.

    Returns:
        [..., n, n] float64: column i is the new block of rank i; row j holds the weights of rank j's block.
    """
    ranks = lost.shape[-1]
    owner = owners[..., None, None]
    counted = ~np.take_along_axis(lost[..., 0, :, :], owner, axis=-1)  # [..., n, 1]: blocks that have reached the owner
    received = ~np.take_along_axis(lost[..., 1, :, :], owner, axis=-2)  # [..., 1, n]: ranks that have received the mean
    mean = counted / counted.sum(axis=-2, keepdims=True)
    return np.where(received, mean, np.eye(ranks))


def scalars_of(matrices: np.ndarray) -> np.ndarray:
    """What each of many matrices W contributes to the two scalars; their means over draws tend to `scalars`.

    The trace of a I + (1 - a) A is (n - 1) a + 1.

    Args:
        matrices: [..., n, n].

    Returns:
        [..., 2] float64.
    """
    ranks = matrices.shape[-1]
    squares = np.sum(matrices**2, axis=(-2, -1))
    of_mean = np.sum(matrices.sum(axis=-1) ** 2, axis=-1) / ranks
    return (np.stack([squares, of_mean], axis=-1) - 1.0) / (ranks - 1)
