"""The recipes: named methods of exchanging gradients, each one expression of the library's parts.

Pass a recipe as `aggregator=` to `DistributedOptimizer` or `DistributedGradientTape`.
"""

from hvd_sparse.recipes.changes import DGC_DENSITIES, dense_below, momentum_corrected, schedule, updates, warmup
from hvd_sparse.recipes.combined import auto, dgc, diloco, recommended, sparseloco
from hvd_sparse.recipes.sparse import blocks, dct, dropping, hitopk, mstopk, sparcml, sparcml_buckets, topk
from hvd_sparse.recipes.whole import dense, mean, torus2d

__all__ = [
    "DGC_DENSITIES",
    "auto",
    "blocks",
    "dct",
    "dense",
    "dense_below",
    "dgc",
    "diloco",
    "dropping",
    "hitopk",
    "mean",
    "momentum_corrected",
    "mstopk",
    "recommended",
    "schedule",
    "sparcml",
    "sparcml_buckets",
    "sparseloco",
    "topk",
    "torus2d",
    "updates",
    "warmup",
]
