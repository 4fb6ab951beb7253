"""Bytes and seconds of SparCML's collectives, by the alpha-beta model (5.2) and the expected fill-in (appendix B)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from hvd_sparse.costs.recipes import Link

INDEX = 4  # bytes of an index
HEADER = 8  # bytes before the rows of a message
_DISJOINT = 1e30  # rows of a vector so large that index sets drawn from it do not overlap
_PRECISE = 1e-6  # relative precision to which `universe` is searched


class Load(NamedTuple):
    """The ranks' input to a collective.

    Attributes:
        ranks: P.
        size: rows of the vector.
        width: elements per row.
        element: bytes per element.
        kept: rows that a rank contributes, the mean over the ranks.
        universe: rows from which index sets drawn at random would overlap as these do; `size` if they are uniform.
        dense_above: rows above which a message of the whole vector is dense.
    """

    ranks: int
    size: int
    width: int
    element: int
    kept: float
    universe: float
    dense_above: float

    def rows(self, ranks: int) -> float:
        """The expected number of rows in the union of the index sets of this many ranks."""
        return min(expected_union(self.kept, self.universe, ranks), self.size)

    @property
    def values(self) -> float:
        """Bytes of all values of the vector."""
        return float(self.size * self.width * self.element)

    def message(self, rows: float, parts: int = 1) -> float:
        """Bytes of the message with one of `parts` pieces of a vector that has `rows` rows."""
        sparse = rows * (INDEX + self.width * self.element)
        return HEADER + (self.values if rows > self.dense_above else sparse) / parts


class Transport(NamedTuple):
    """The time of each kind of call, with all ranks taking part, and of combining rows.

    Attributes:
        exchange: an exchange between pairs; its bytes are those of the message.
        alltoall: an all-to-all; its bytes are those that a rank sends to all others.
        allgather: a ring all-gather; its bytes are those that a rank sends to all others.
        byte: seconds per byte of the messages that a rank reads to combine them.
    """

    exchange: Link
    alltoall: Link
    allgather: Link
    byte: float = 0.0


def expected_union(kept: float, size: float, ranks: int) -> float:
    """E[K], the rows in the union of `ranks` index sets of `kept` rows each, drawn uniformly from `size` (SparCML B.1).

    It is the closed form of the paper's alternating sum, N (1 - (1 - k / N)^P).
    """
    if size <= 0 or kept <= 0:
        return 0.0
    share = min(kept / size, 1.0)
    return size if share == 1.0 else -size * math.expm1(ranks * math.log1p(-share))


def universe(kept: float, union: float, ranks: int) -> float:
    """The number of rows from which `ranks` uniform sets of `kept` rows have an expected union of `union` rows.

    This is the inverse of `expected_union`: `kept` if the sets are the same, without bound if they do not overlap.
    """
    if kept <= 0 or ranks == 1 or union <= kept:
        return kept
    if union >= expected_union(kept, _DISJOINT, ranks) * (1 - 1e-9):
        return _DISJOINT
    low, high = math.log(kept), math.log(_DISJOINT)
    while high - low > _PRECISE:
        middle = (low + high) / 2
        low, high = (low, middle) if expected_union(kept, math.exp(middle), ranks) > union else (middle, high)
    return math.exp(high)


def steps(collective: str, ranks: int) -> int:
    """Messages of one rank that wait for one another; those of a ring or an all-to-all count one by one."""
    if collective not in SENT:
        raise ValueError(f"Expected one of {', '.join(SENT)}, got {collective!r}.")
    if collective == "recursive_doubling":
        rounds = ranks.bit_length() - 1
        return rounds + (2 if ranks > 2**rounds else 0)
    return (ranks - 1) * (1 if collective == "allgather" else 2)


def sent(collective: str, load: Load) -> float:
    """Expected bytes that one rank sends: the mean over the ranks; for recursive doubling, the maximum."""
    if collective not in SENT:
        raise ValueError(f"Expected one of {', '.join(SENT)}, got {collective!r}.")
    return sum(SENT[collective](load)) if load.ranks > 1 else 0.0


def seconds(collective: str, load: Load, transport: Transport) -> float:
    """Expected seconds of a collective: its calls one after another, and the combining in between.

    Raises:
        ValueError: if `auto` does not choose from this collective.
    """
    if collective not in CANDIDATES:
        raise ValueError(f"Expected one of {', '.join(CANDIDATES)}, got {collective!r}.")
    if load.ranks == 1:
        return 0.0
    messages = SENT[collective](load)
    if collective == "recursive_doubling":
        handed = [load.message(load.kept)] if steps(collective, load.ranks) > len(messages) else []
        taken = sum(transport.exchange.message(each) for each in [*handed, *messages])
        return taken + transport.byte * 2 * sum(messages)
    if collective == "allgather":
        gathered = messages[0]
        read = load.ranks / (load.ranks - 1) * gathered
        return transport.allgather.message(gathered) + transport.byte * read
    split, gathered = messages
    read = load.message(load.kept) * 2 + (load.ranks / (load.ranks - 1)) * gathered
    return transport.alltoall.message(split) + transport.allgather.message(gathered) + transport.byte * read


def _recursive_doubling(load: Load) -> list[float]:
    """Bytes that rank 0 sends, in each round; if P is not a power of two, it also represents a surplus rank."""
    rounds = load.ranks.bit_length() - 1
    surplus = load.ranks - 2**rounds
    members = [2**number + min(surplus, 2**number) for number in range(rounds)]
    result = [load.message(load.rows(load.ranks))] if surplus else []
    return [load.message(load.rows(each)) for each in members] + result


def _split(load: Load) -> float:
    return (load.ranks - 1) * load.message(load.kept, load.ranks)


def _split_allgather(load: Load) -> list[float]:
    return [_split(load), (load.ranks - 1) * load.message(load.rows(load.ranks), load.ranks)]


def _dynamic(load: Load) -> list[float]:
    return [_split(load), (load.ranks - 1) / load.ranks * load.values]


def _sparse_ring(load: Load) -> list[float]:
    return [load.message(load.rows(number), load.ranks) for number in range(1, load.ranks)] + [
        (load.ranks - 1) * load.message(load.rows(load.ranks), load.ranks)
    ]


def _dense_ring(load: Load) -> list[float]:
    return [2 * (load.ranks - 1) / load.ranks * load.values]


def _allgather(load: Load) -> list[float]:
    return [(load.ranks - 1) * load.message(load.kept)]


SENT: dict[str, Callable[[Load], list[float]]] = {
    "recursive_doubling": _recursive_doubling,
    "split_allgather": _split_allgather,
    "dynamic": _dynamic,
    "sparse_ring": _sparse_ring,
    "dense_ring": _dense_ring,
    "allgather": _allgather,
}
CANDIDATES = ("recursive_doubling", "split_allgather", "dynamic", "allgather")
