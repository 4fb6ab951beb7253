"""What is measured of a cluster, and chosen by it."""

from hvd_sparse.tuning.auto import Auto

__all__ = ["Auto"]
