"""Recipes that send the whole gradient."""

from __future__ import annotations

from hvd_sparse.aggregators import Aggregator, AllReduce, Hierarchical, Mean
from hvd_sparse.aggregators.named import named


@named
def mean(wire_dtype: str | None = None) -> Aggregator:
    """The dense mean: `torus2d` if there are several nodes of several ranks each, otherwise `dense`; the default."""
    return Mean(wire_dtype)


@named
def dense(wire_dtype: str | None = None) -> Aggregator:
    """One all-reduce over all ranks: what Horovod does, CommLib's Dense."""
    return AllReduce(wire_dtype)


@named
def torus2d(wire_dtype: str | None = None) -> Aggregator:
    """Reduce-scatter in the node, all-reduce across nodes, all-gather in the node: 2DTAR (CommLib 5.3)."""
    return Hierarchical(AllReduce(wire_dtype))
