"""Every named system as one expression of the parts.

A recipe is what `DistributedOptimizer(..., aggregator=...)` takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from hvd_sparse.aggregators import Aggregator, AllReduce, Compressed, Hierarchical, Schedule
from hvd_sparse.compressors import Density, MSTopK, TopK
from hvd_sparse.error_feedback import ErrorFeedback


def dense(wire_dtype: str | None = None) -> Aggregator:
    """One all-reduce over all ranks: what Horovod does, CommLib's Dense."""
    return AllReduce(wire_dtype)


def torus2d(wire_dtype: str | None = None) -> Aggregator:
    """Reduce-scatter in the node, all-reduce across nodes, all-gather in the node: 2DTAR (CommLib 5.3)."""
    return Hierarchical(AllReduce(wire_dtype))


def topk(density: Density, wire_dtype: str = "float32") -> Aggregator:
    """Exact top-k with error feedback, gathered from all ranks: CommLib's TopK-SGD by NaiveAG (3.2, Eq. 3)."""
    return Compressed(ErrorFeedback(TopK(density, wire_dtype)))


def mstopk(density: Density, wire_dtype: str = "float32", samplings: int = 30, seed: int = 0) -> Aggregator:
    """As `topk`, with MSTopK selection (CommLib Algorithm 1)."""
    return Compressed(ErrorFeedback(MSTopK(density, wire_dtype, samplings, seed)))


def hitopk(density: Density, wire_dtype: str = "float32", samplings: int = 30, seed: int = 0) -> Aggregator:
    """HiTopKComm with MSTopK selection and error feedback: CommLib's MSTopK-SGD (Algorithms 1 and 2)."""
    return Hierarchical(Compressed(ErrorFeedback(MSTopK(density, wire_dtype, samplings, seed))))


def schedule(stages: Sequence[tuple[int, Aggregator]]) -> Aggregator:
    """A recipe for each range of epochs, as [(0, hitopk(0.01)), (13, torus2d())] (CommLib 5.6)."""
    return Schedule(tuple((int(start), aggregator) for start, aggregator in stages))
