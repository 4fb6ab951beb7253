"""What SparCML's collectives send and take, by the alpha-beta model (5.2) and the expected fill-in (appendix B)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from hvd_sparse.costs.recipes import Link

INDEX = 4  # bytes of an index
HEADER = 8  # bytes before the rows of a message
_DISJOINT = 1e30  # rows of a vector so large that index sets drawn from it do not meet
_PRECISE = 1e-6  # relative, of a size that is looked for


class Load(NamedTuple):
    """What the ranks bring.

    Attributes:
        ranks: P.
        size: rows of the vector.
        width: elements of a row.
        element: bytes of an element.
        kept: rows that a rank brings, the mean over the ranks.
        universe: rows from which index sets that were drawn at random would meet as these do; `size` of uniform ones.
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
        """Rows of the union of the index sets of some of the ranks, as expected."""
        return min(expected_union(self.kept, self.universe, ranks), self.size)

    @property
    def values(self) -> float:
        """Bytes of all values of the vector."""
        return float(self.size * self.width * self.element)

    def message(self, rows: float, parts: int = 1) -> float:
        """Bytes of the message of a piece, one of `parts`, of a vector that has `rows` rows."""
        sparse = rows * (INDEX + self.width * self.element)
        return HEADER + (self.values if rows > self.dense_above else sparse) / parts


class Transport(NamedTuple):
    """What one call of each kind takes, all ranks taking part, and what combining rows takes.

    Attributes:
        exchange: between pairs; its bytes are those of the message.
        alltoall: its bytes are those that a rank sends to all others.
        allgather: the same, as a ring.
        byte: seconds a byte of messages that a rank reads to combine them.
    """

    exchange: Link
    alltoall: Link
    allgather: Link
    byte: float = 0.0


def expected_union(kept: float, size: float, ranks: int) -> float:
    """E[K]: rows of the union of `ranks` index sets, each of `kept` rows of `size` drawn uniformly (SparCML B.1).

    The closed form of its alternating sum, N (1 - (1 - k / N)^P).
    """
    if size <= 0 or kept <= 0:
        return 0.0
    share = min(kept / size, 1.0)
    return size if share == 1.0 else -size * math.expm1(ranks * math.log1p(-share))


def universe(kept: float, union: float, ranks: int) -> float:
    """Rows from which `ranks` sets of `kept` rows, drawn uniformly, are expected to have a union of `union` rows.

    The inverse of `expected_union`: `kept` where the sets are the same, without bound where they do not meet.
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
    """Messages of one rank that wait for one another, those of a ring or of an all-to-all one after the other."""
    if collective not in SENT:
        raise ValueError(f"Expected one of {', '.join(SENT)}, got {collective!r}.")
    if collective == "recursive_doubling":
        rounds = ranks.bit_length() - 1
        return rounds + (2 if ranks > 2**rounds else 0)
    return (ranks - 1) * (1 if collective == "allgather" else 2)


def sent(collective: str, load: Load) -> float:
    """Bytes that one rank sends, as expected: the mean, of recursive doubling the most."""
    if collective not in SENT:
        raise ValueError(f"Expected one of {', '.join(SENT)}, got {collective!r}.")
    return sum(SENT[collective](load)) if load.ranks > 1 else 0.0


def seconds(collective: str, load: Load, transport: Transport) -> float:
    """What a collective takes, as expected: its calls one after the other, and the combining in between.

    Of those that auto chooses from; ValueError of others.
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
    """What rank 0 sends, which stands for another one from the first round on where P is no power of two."""
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
