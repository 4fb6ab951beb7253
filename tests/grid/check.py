"""What is right: the oracles that a cell has to agree with."""

from __future__ import annotations

import numpy as np

from tests import threads
from tests.grid import plain, play, refusals
from tests.grid.cell import Cell
from tests.grid.optimizers import OPTIMIZERS


def wrong(cell: Cell) -> str:
    """What is wrong with a cell; "" if nothing is."""
    refusal = refusals.of(cell)
    try:
        ended = play.played(cell)
    except threads.RanksFailed as failed:
        return _unlike(failed) if refusal is None else _refused_otherwise(failed, refusal.says)
    if refusal is not None:
        return f"it was expected to be refused: {refusal.says!r}"
    return differs(cell, ended)


def differs(cell: Cell, ended: list[play.Ended]) -> str:
    """How what the ranks ended with differs from what the oracles say; "" if it does not."""
    return _ranks_differ(cell.after, ended) or _differs_from_unstopped(ended) or _differs_from_plain(cell, ended)


def _unlike(failed: threads.RanksFailed) -> str:
    told = {rank: f"{type(error).__name__}: {error}" for rank, error in enumerate(failed.errors) if error}
    return "; ".join(f"rank {rank}: {text[:400]}" for rank, text in told.items())


def _refused_otherwise(failed: threads.RanksFailed, says: str) -> str:
    told = {str(error) for error in failed.errors}
    return "" if len(told) == 1 and says in told.pop() else f"expected {says!r} on all ranks, got {_unlike(failed)}"


def _ranks_differ(cell: Cell, ended: list[play.Ended]) -> str:
    for rank, other in enumerate(ended):
        for (path, value), (_, first) in zip(other.values, ended[0].values, strict=True):
            if not cell.differs(path) and not _same_bits(value, first):
                return f"{path} of rank {rank} is {_away(value, first):.1e} away from that of rank 0"
    return ""


def _differs_from_unstopped(ended: list[play.Ended]) -> str:
    for rank, own in enumerate(ended):
        for (path, value), (_, expected) in zip(own.values, own.unstopped or own.values, strict=True):
            if not _same_bits(value, expected):
                return f"{path} of rank {rank} is {_away(value, expected):.1e} away from a training without a stop"
    return ""


def _differs_from_plain(cell: Cell, ended: list[play.Ended]) -> str:
    if not cell.is_simulated:
        return ""
    for rank, (own, expected) in enumerate(zip(ended, plain.simulated(cell), strict=True)):
        for (path, value), (_, other) in zip(own.values, expected, strict=True):
            allowed = OPTIMIZERS[cell.optimizer].tolerance * max(1.0, float(np.abs(other).max(initial=0.0)))
            if not _away(value, other) <= allowed:
                return f"{path} of rank {rank} is {_away(value, other):.1e} away from plain Keras"
    return ""


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _away(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype("f8") - other.astype("f8")).max(initial=0.0))
