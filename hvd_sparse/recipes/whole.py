"""Recipes that send the whole gradient."""

from __future__ import annotations

from hvd_sparse.aggregators import Aggregator, AllReduce, Hierarchical, Mean


def mean(wire_dtype: str | None = None) -> Aggregator:
    """The dense mean: `torus2d` if there are several nodes of several ranks each, otherwise `dense`; the default."""
    return Mean(wire_dtype)


def dense(wire_dtype: str | None = None) -> Aggregator:
    """One all-reduce over all ranks: what Horovod does, CommLib's Dense."""
    return AllReduce(wire_dtype)


def torus2d(wire_dtype: str | None = None) -> Aggregator:
    """Reduce-scatter in the node, all-reduce across nodes, all-gather in the node: 2DTAR (CommLib 5.3)."""
    return Hierarchical(AllReduce(wire_dtype))
