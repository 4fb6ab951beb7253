"""What an exchange takes, by formulas: of whole recipes, and in `costs.collectives` of the sums of sparse vectors."""

from hvd_sparse.costs.recipes import (
    CANDIDATES,
    ELEMENT,
    FEEDBACK,
    INDEX,
    KEPT,
    MODELS,
    Cluster,
    Link,
    dense,
    hitopk,
    kept,
    link_bytes,
    seconds,
    topk,
    torus2d,
    tree,
)

__all__ = [
    "CANDIDATES",
    "ELEMENT",
    "FEEDBACK",
    "INDEX",
    "KEPT",
    "MODELS",
    "Cluster",
    "Link",
    "dense",
    "hitopk",
    "kept",
    "link_bytes",
    "seconds",
    "topk",
    "torus2d",
    "tree",
]
