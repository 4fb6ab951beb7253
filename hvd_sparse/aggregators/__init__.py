"""Aggregators average a gradient over all ranks; each kind has its own file."""

from hvd_sparse.aggregators.allreduce import AllReduce
from hvd_sparse.aggregators.base import Aggregator
from hvd_sparse.aggregators.by_nodes import ByNodes
from hvd_sparse.aggregators.compressed import Accumulated, Compressed
from hvd_sparse.aggregators.dense_below import DenseBelow
from hvd_sparse.aggregators.hierarchical import Hierarchical
from hvd_sparse.aggregators.local_steps import LocalSteps, Outer
from hvd_sparse.aggregators.mean import Mean
from hvd_sparse.aggregators.rotating_blocks import RotatingBlocks
from hvd_sparse.aggregators.schedule import Schedule
from hvd_sparse.aggregators.sparcml_algorithm1 import SparCMLAlgorithm1
from hvd_sparse.aggregators.sparse_allreduce import SparseAllReduce
from hvd_sparse.aggregators.transaction import Exchange, commit
from hvd_sparse.aggregators.warmup import Warmup

__all__ = [
    "Accumulated",
    "Aggregator",
    "AllReduce",
    "ByNodes",
    "Compressed",
    "DenseBelow",
    "Exchange",
    "Hierarchical",
    "LocalSteps",
    "Mean",
    "Outer",
    "RotatingBlocks",
    "Schedule",
    "SparCMLAlgorithm1",
    "SparseAllReduce",
    "Warmup",
    "commit",
]
