"""Members of public classes under the names that they had: they work for one release more, and tell the new name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar


class Renamed:
    """A class with members that had other names, which can be asked for, and which subclasses may still define.

    Attributes:
        old_names: the names of the former release -> those of today.
    """

    old_names: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        for old, new in cls.old_names.items():
            if old in vars(cls) and new not in vars(cls):
                _tell(cls, old, new)
                setattr(cls, new, vars(cls)[old])

    def __getattr__(self, name: str) -> Any:
        new = type(self).old_names.get(name)
        if new is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        _tell(type(self), name, new)
        return getattr(self, new)


def _tell(owner: type, old: str, new: str) -> None:
    warnings.warn(
        f"{owner.__name__}.{old} is now called {new}; the old name will be removed in the next release.",
        DeprecationWarning,
        stacklevel=3,
    )
