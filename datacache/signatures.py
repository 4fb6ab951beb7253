"""Which parameters a function of a user has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name that must be given."""
    try:
        parameter = inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):  # some functions in C have no signature
        return False
    return parameter is not None and parameter.default is parameter.empty
