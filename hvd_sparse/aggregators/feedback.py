"""Wraps the error feedback inside a recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from hvd_sparse.aggregators.compressed import Compressed
from hvd_sparse.aggregators.dense_below import DenseBelow
from hvd_sparse.aggregators.hierarchical import Hierarchical
from hvd_sparse.aggregators.sparcml_algorithm1 import SparCMLAlgorithm1
from hvd_sparse.aggregators.sparse_allreduce import SparseAllReduce
from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.error_feedback import ErrorFeedback


def around_feedback(part: Any, wrap: Callable[[ErrorFeedback], Compressor]) -> Any:
    """A copy of a recipe, or of a part of one, in which `wrap` is applied to every `ErrorFeedback`."""
    if isinstance(part, ErrorFeedback):
        return wrap(part)
    if not isinstance(part, (Compressed, DenseBelow, Hierarchical, SparseAllReduce, SparCMLAlgorithm1)):
        return part
    whole: Any = part
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(whole)}
    return dataclasses.replace(whole, **{name: around_feedback(value, wrap) for name, value in fields.items()})
