"""The parts of a recipe, and the dtype in which they send values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from hvd_sparse.aggregators import Aggregator
from hvd_sparse.compression.base import Compressor


def parts(recipe: Any) -> Iterator[Any]:
    """A recipe and all of its parts."""
    if isinstance(recipe, tuple):
        for member in recipe:
            yield from parts(member)
        return
    yield recipe
    if dataclasses.is_dataclass(recipe) and not isinstance(recipe, type):
        for field in dataclasses.fields(recipe):
            yield from parts(getattr(recipe, field.name))


def with_wire_dtype(part: Any, wire_dtype: str) -> Any:
    """A copy of a recipe whose values travel in another dtype instead of float32 or the gradient's own dtype.

    Args:
        part: a recipe or a part of one.
        wire_dtype: "float32", "float16" or "bfloat16".

    Raises:
        ValueError: if a part encodes what it sends, or was given another dtype.
    """
    if isinstance(part, tuple):
        return tuple(with_wire_dtype(member, wire_dtype) for member in part)
    if not isinstance(part, (Aggregator, Compressor)):
        return part
    fields = [field.name for field in dataclasses.fields(part)] if dataclasses.is_dataclass(part) else list[str]()
    if "wire_dtype" in fields:
        return _replaced(part, wire_dtype)
    inner = {name: getattr(part, name) for name in fields}
    made_of = {name: value for name, value in inner.items() if isinstance(value, (Aggregator, Compressor, tuple))}
    if part.has_own_code or not made_of:
        raise ValueError(
            f"{type(part).__name__} has its own encoding of its values, and cannot send them as {wire_dtype}: leave "
            "out compression, or use a recipe with a wire_dtype, such as hvd.recipes.topk(density)."
        )
    changed = {name: with_wire_dtype(value, wire_dtype) for name, value in made_of.items()}
    whole: Any = part
    return dataclasses.replace(whole, **changed)


def _replaced(part: Any, wire_dtype: str) -> Any:
    if part.wire_dtype not in (None, "float32", wire_dtype):
        raise ValueError(
            f"{type(part).__name__} has wire_dtype={part.wire_dtype!r}, and compression asks for {wire_dtype}: "
            "pass only one of them."
        )
    return dataclasses.replace(part, wire_dtype=wire_dtype)
