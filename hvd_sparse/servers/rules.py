"""Which pushes a server applies, and when."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Standing(NamedTuple):
    """The state of a server's clients.

    Attributes:
        waiting: clients that wait for an answer to their push, in the order of arrival.
        lags: for each client that computes, the number of updates made since it was last sent parameters.
        absent: clients that have not begun yet.
        gathered: number of pushes that have been applied since the last update.
    """

    waiting: Sequence[int]
    lags: Mapping[int, int]
    absent: Collection[int]
    gathered: int


class Rule(abc.ABC):
    """Decides which of the waiting pushes are applied next, and when their sum becomes an update."""

    @abc.abstractmethod
    def next(self, standing: Standing) -> list[int]:
        """The clients whose pushes are applied next, in this order; [] if all have to wait."""

    @abc.abstractmethod
    def makes_update(self, gathered: int) -> bool:
        """Whether this many applied pushes make an update."""


@dataclasses.dataclass(frozen=True)
class InOrderOfArrival(Rule):
    """Asynchronous: each push is applied when it arrives, unless a client that computes would lag too far behind.

    Attributes:
        max_staleness: number of updates that may be made while a client computes, at least 0; None sets no bound. With
            P clients a gradient is at most max_staleness + P - 1 updates old when it is applied, as those that waited
            beside it may come first.
        pushes_per_update: number of pushes averaged for one update, at least 1.
    """

    max_staleness: int | None = None
    pushes_per_update: int = 1

    def __post_init__(self):
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ValueError(f"Expected max_staleness of at least 0 updates, or None, got {self.max_staleness}.")
        if self.pushes_per_update < 1:
            raise ValueError(f"Expected pushes_per_update of at least 1, got {self.pushes_per_update}.")

    def next(self, standing):
        if self.makes_update(standing.gathered + 1) and not self._may_update(standing.lags):
            return []
        return list(standing.waiting[:1])

    def makes_update(self, gathered):
        return gathered >= self.pushes_per_update

    def _may_update(self, lags: Mapping[int, int]) -> bool:
        return self.max_staleness is None or all(lag < self.max_staleness for lag in lags.values())


@dataclasses.dataclass(frozen=True)
class Together(Rule):
    """Synchronous: the pushes of all clients are averaged for one update, added in the order of their ranks."""

    def next(self, standing):
        return [] if standing.lags or standing.absent else sorted(standing.waiting)

    def makes_update(self, gathered):
        return True
