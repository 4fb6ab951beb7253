"""Small variables are sent whole, next to a sparse recipe for the others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from hvd_sparse.aggregators.base import Aggregator, AggregatorState
from hvd_sparse.aggregators.delegating import Delegating
from hvd_sparse.aggregators.mean import Mean
from hvd_sparse.spec import Spec


@dataclasses.dataclass(frozen=True)
class DenseBelow(Delegating):
    """Averages small variables densely and leaves the others to a sparse recipe.

    Biases and normalizations have few elements but affect a whole layer; users of DGC and PowerSGD send them whole. The
    exchange puts them into buckets of their own, so each vector holds variables of one kind only. The momentum and
    slots of a small variable stay with the optimizer.

    Attributes:
        inner: exchanges vectors that contain a variable with at least `elements` elements.
        elements: variables with fewer elements than this are small.
        dense: exchanges all other vectors.

    Steps and bytes sent per rank: those of the aggregator that exchanges the vector.
    """

    disk_name = "DenseBelow"
    inner: Aggregator
    elements: int
    dense: Aggregator = Mean()

    def __post_init__(self):
        if self.elements < 1:
            raise ValueError(f"Expected elements to be at least 1, got {self.elements}.")
        if self.inner.sends_all:
            raise ValueError(f"{type(self.inner).__name__} sends all of each variable: use it without DenseBelow.")
        if not self.dense.sends_all:
            raise ValueError(f"Expected a dense recipe for small variables, got {type(self.dense).__name__}.")

    @property
    def returns_sum(self):
        """As for the inner, which must return means like the dense recipe."""
        return self.inner.returns_sum

    def small(self, shapes: Mapping[str, Sequence[int]]) -> set[str]:
        """The names of the variables that are sent whole, from the shapes of all variables by name."""
        return {name for name, shape in shapes.items() if math.prod(shape) < self.elements}

    def part(self, spec: Spec) -> Aggregator:
        """The aggregator that exchanges a vector."""
        sizes = [segment.size for segment in spec.segments] or [spec.size]
        return self.dense if max(sizes) < self.elements else self.inner

    def at_density(self, density):
        return dataclasses.replace(self, inner=self.inner.at_density(density))

    def serving(self, state):
        return self.part(state.spec)

    def _create(self, spec, communicator):
        return AggregatorState(spec, communicator, self.part(spec)._create(spec, communicator))
