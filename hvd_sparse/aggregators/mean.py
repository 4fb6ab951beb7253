"""The dense mean by whichever way the grid makes shorter."""

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
    """2DTAR (CommLib 5.3) where there are several nodes of several ranks each, else one all-reduce over all ranks.

    A ring over all ranks sends 2 (P - 1) / P of the vector from each node to the next one, 2DTAR 2 (m - 1) / m of it
    with m nodes: two thirds on 2 nodes of 2 ranks. The choice follows from the grid alone, so nothing is measured and
    every run on the same grid adds in the same order.

    Attributes:
        wire_dtype: "float32", "float16" or "bfloat16": how values travel between nodes and are added; by default the
            vector's.

    Steps and bytes sent per rank: those of `Hierarchical` around `AllReduce`, or of `AllReduce`.
    """

    disk_name = "Mean"
    wire_dtype: str | None = None

    def __post_init__(self):
        if self.wire_dtype is not None:
            check_wire_dtype(self.wire_dtype)

    @property
    def sends_all(self):
        """It does."""
        return True

    @property
    def nests(self):
        """It takes all ranks, and looks for their nodes itself."""
        return False

    def on(self, grid: Grid) -> Aggregator:
        """What exchanges on a grid."""
        across = AllReduce(self.wire_dtype)
        return Hierarchical(across) if grid.node.size > 1 and grid.cross.size > 1 else across

    def running(self, state):
        return self.on(state.spec.grid).running(state)

    def reduce(self, parts, divisor, state):
        return self.on(state.spec.grid).reduce(parts, divisor, state)

    def takes_apart(self, spec):
        """As what exchanges on this grid."""
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
