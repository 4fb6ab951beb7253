"""Measures a cluster and chooses recipes from the measurements."""

from hvd_sparse.tuning.auto import Auto

__all__ = ["Auto"]
