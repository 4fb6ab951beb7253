"""Wraps the error feedback inside a recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_sparse.aggregators.schedule import Schedule
from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.momentum import MomentumCorrection
from hvd_sparse.compression.senders import Sender
from hvd_sparse.spec import parts, rebuilt


def around_feedback(recipe: Any, wrap: Callable[[ErrorFeedback], Compressor]) -> Any:
    """A copy of a recipe in which `wrap` is applied to every `ErrorFeedback`.

    Raises:
        ValueError: if there is none, something wraps it already, or the recipe is a schedule.
    """
    found = list(parts(recipe))
    reason = next((reason for part in found if (reason := _why_not(part))), None)
    if reason is None and not any(isinstance(part, ErrorFeedback) for part in found):
        reason = "which keeps no residual: use it unchanged, with the optimizer after the exchange."
    if reason is not None:
        raise ValueError(
            "Expected a recipe with error feedback of gradients, such as hvd.recipes.hitopk(0.01), got "
            f"{type(recipe).__name__}, {reason}"
        )
    return _wrapped(recipe, wrap)


def _why_not(part: Any) -> str | None:
    if isinstance(part, MomentumCorrection):
        return "which has momentum on the sender's side already: leave this change out, or change the recipe in it."
    if isinstance(part, Sender):
        return "which sends the optimizer's updates already, and these contain its momentum: use it unchanged."
    if isinstance(part, Schedule):
        return "a schedule: change the recipes in it, one by one."
    return None


def _wrapped(part: Any, wrap: Callable[[ErrorFeedback], Compressor]) -> Any:
    if isinstance(part, ErrorFeedback):
        return wrap(part)
    return rebuilt(part, lambda inner: _wrapped(inner, wrap))
