"""The base class of aggregators that leave each vector to another one."""

from __future__ import annotations

import abc
from typing import Any

from hvd_sparse.aggregators.base import Aggregator


class Delegating(Aggregator):
    """Leaves a vector to another aggregator, whose state is `state.inner`.

    A subclass says which one, and creates an `AggregatorState`, or one derived from it, with that one's state in it.
    """

    @property
    def nests(self) -> bool:
        """False: put `Hierarchical` around what it leaves vectors to."""
        return False

    @abc.abstractmethod
    def serving(self, state: Any) -> Aggregator:
        """The aggregator that exchanges this vector."""

    def set_epoch(self, state, epoch):
        self.serving(state).set_epoch(state.inner, epoch)

    def running(self, state):
        return self.serving(state).running(state.inner)

    def decided(self, state):
        return self.serving(state).decided(state.inner)

    def reduce(self, parts, divisor, state):
        return self.serving(state).reduce(parts, divisor, state.inner)

    def residual(self, state):
        return self.serving(state).residual(state.inner)

    def node_residual(self, state):
        return self.serving(state).node_residual(state.inner)

    def restored(self, state, residual):
        return self.serving(state).restored(state.inner, residual)

    def contributions(self, size, members):
        return None
