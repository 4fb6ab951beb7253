"""The dtype in which a recipe sends values."""

from __future__ import annotations

import dataclasses
from typing import Any

from hvd_sparse.aggregators import Aggregator, ByNodes
from hvd_sparse.compression.base import Compressor
from hvd_sparse.spec import components, parts, rebuilt


def with_wire_dtype(part: Any, wire_dtype: str) -> Any:
    """A copy of a recipe whose values travel in another dtype instead of float32 or the gradient's own dtype.

    Args:
        part: a recipe or a part of one.
        wire_dtype: "float32", "float16" or "bfloat16".

    Raises:
        ValueError: if a part encodes what it sends and is used whatever the number of nodes, or was given another
            dtype.
    """
    if not isinstance(part, (Aggregator, Compressor)):
        return part
    if isinstance(part, ByNodes):  # a choice that sends fewer bits already stays as it is
        return part.each(lambda choice: choice if _encodes(choice) else with_wire_dtype(choice, wire_dtype))
    if "wire_dtype" in components(part) and not part.has_own_code:
        return _replaced(part, wire_dtype)
    if part.has_own_code or not any(isinstance(each, (Aggregator, Compressor)) for each in list(parts(part))[1:]):
        raise ValueError(
            f"{type(part).__name__} has its own encoding of its values, and cannot send them as {wire_dtype}: leave "
            "out compression, or use a recipe with a wire_dtype, such as hvd.recipes.topk(density)."
        )
    return rebuilt(part, lambda inner: with_wire_dtype(inner, wire_dtype))


def _encodes(recipe: Aggregator) -> bool:
    return any(isinstance(part, Compressor) and part.has_own_code for part in parts(recipe))


def _replaced(part: Any, wire_dtype: str) -> Any:
    if part.wire_dtype not in (None, "float32", wire_dtype):
        raise ValueError(
            f"{type(part).__name__} has wire_dtype={part.wire_dtype!r}, and compression asks for {wire_dtype}: "
            "pass only one of them."
        )
    return dataclasses.replace(part, wire_dtype=wire_dtype)
