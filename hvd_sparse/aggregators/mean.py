"""The dense mean by the method that suits the grid of nodes and ranks."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse.aggregators.allreduce import AllReduce
from hvd_sparse.aggregators.base import Aggregator
from hvd_sparse.aggregators.hierarchical import Hierarchical
from hvd_sparse.compression.selection import check_wire_dtype
from hvd_sparse.transport.communicator import Grid


@dataclasses.dataclass(frozen=True)
class Mean(Aggregator):
    """2DTAR (CommLib 5.3) if there are several nodes of several ranks each, otherwise one all-reduce over all ranks.

    A ring over all ranks sends 2 (P - 1) / P of the vector from each node to the next one; 2DTAR on m nodes sends
    2 (m - 1) / m, two thirds as much on 2 nodes of 2 ranks. The choice depends on the grid alone: nothing is measured,
    and every run on the same grid adds in the same order.

    Attributes:
        wire_dtype: "float32", "float16" or "bfloat16", in which values travel between nodes and are added; by default
            the vector's.

    Steps and bytes sent per rank: those of `Hierarchical` around `AllReduce`, or of `AllReduce`.
    """

    disk_name = "Mean"
    recipe_name = "mean"
    wire_dtype: str | None = None

    def __post_init__(self):
        if self.wire_dtype is not None:
            check_wire_dtype(self.wire_dtype)

    @property
    def sends_all(self):
        """True."""
        return True

    @property
    def nests(self):
        """False: it takes all ranks and finds their nodes itself."""
        return False

    def on(self, grid: Grid) -> Aggregator:
        """The aggregator that is used on a grid."""
        across = AllReduce(self.wire_dtype)
        return Hierarchical(across) if grid.node.size > 1 and grid.cross.size > 1 else across

    def running(self, state):
        return self.on(state.spec.grid).running(state)

    def reduce(self, parts, divisor, state):
        return self.on(state.spec.grid).reduce(parts, divisor, state)

    def takes_apart(self, spec):
        """As for the aggregator that is used on this grid."""
        return self.on(spec.grid).takes_apart(spec)

    def exchange_apart(self, tensors, state, residual):
        return self.on(state.spec.grid).exchange_apart(tensors, state, residual)

    def residual(self, state):
        return tf.zeros([state.spec.size], tf.float32)

    def restored(self, state, residual):
        return ()

    def contributions(self, size, members):
        return None

    def _create(self, spec, communicator):
        return self.on(spec.grid)._create(spec, communicator)
