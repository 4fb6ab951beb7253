"""A gradient goes in, its mean over all ranks comes out; one file a member of the role."""

from hvd_sparse.aggregators.allreduce import AllReduce
from hvd_sparse.aggregators.base import Aggregator
from hvd_sparse.aggregators.compressed import Compressed
from hvd_sparse.aggregators.hierarchical import Hierarchical
from hvd_sparse.aggregators.mean import Mean
from hvd_sparse.aggregators.schedule import Schedule
from hvd_sparse.aggregators.sparcml_algorithm1 import SparCMLAlgorithm1
from hvd_sparse.aggregators.sparse_allreduce import SparseAllReduce
from hvd_sparse.aggregators.transaction import Exchange, commit
from hvd_sparse.aggregators.warmup import Warmup

__all__ = [
    "Aggregator",
    "AllReduce",
    "SparCMLAlgorithm1",
    "Compressed",
    "Exchange",
    "Hierarchical",
    "Mean",
    "Schedule",
    "SparseAllReduce",
    "Warmup",
    "commit",
]
