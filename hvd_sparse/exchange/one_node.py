"""What a recipe becomes where all ranks are on one node: nothing crosses a network, so everything is sent."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import Any

from hvd_sparse.aggregators import Accumulated, Aggregator, Compressed, Hierarchical, LocalSteps, Mean, Outer
from hvd_sparse.aggregators.sparcml_algorithm1 import SparCMLAlgorithm1
from hvd_sparse.aggregators.sparse_allreduce import SparseAllReduce
from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.selectors import TopK
from hvd_sparse.compression.senders import Sender
from hvd_sparse.spec import parts
from hvd_sparse.transport import topology

_log = logging.getLogger(__name__)


def recipe_here(recipe: Aggregator) -> Aggregator:
    """The recipe to exchange with: on one node everything is sent, which rank 0 says in a line.

    Nodes that were given to `init` by `local_size` are taken at their word, so that one machine can try everything.
    """
    if topology.nodes_are_given() or topology.cross().size > 1:
        return recipe
    here = everything(recipe)
    if here != recipe:
        _tell(topology.world().rank)
    return here


def everything(recipe: Aggregator) -> Aggregator:
    """A recipe that sends all that this one selects from, for the ranks of one node; itself if it selects nothing.

    A recipe that exchanges gradients becomes the dense mean. Momentum, an optimizer or a learning rate that the
    exchange has taken over stays there, as the exchange's users have arranged for it; the ranks are then one sender. An
    outer step stays, too, and without one there is no reason to wait for it.
    """
    found = list(parts(recipe))
    if not any(_selects(part) for part in found):
        return recipe
    sender = next((part for part in found if isinstance(part, Sender)), None)
    published = any(isinstance(part, SparCMLAlgorithm1) for part in found)
    if sender is None and not published:
        return Mean()
    whole: Compressor = ErrorFeedback(TopK(1.0))
    if sender is not None:
        kept: Any = sender
        whole = dataclasses.replace(kept, compressor=whole)
    if published:
        return SparCMLAlgorithm1(Accumulated(whole))
    inner = Hierarchical(Accumulated(whole))
    steps = next((part for part in found if isinstance(part, LocalSteps) and part.outer != Outer()), None)
    return inner if steps is None else dataclasses.replace(steps, inner=inner)


def _selects(part: Any) -> bool:
    return isinstance(part, (Compressed, SparseAllReduce)) and not isinstance(part, Accumulated)


@functools.cache  # once in a process
def _tell(rank: int) -> None:
    if rank == 0:
        _log.info(
            "all ranks are on one node, where nothing crosses a network, so everything is sent and the "
            "density has no effect. To try sparse training on one machine, call hvd.init(local_size=1), which makes "
            "each rank a node."
        )
