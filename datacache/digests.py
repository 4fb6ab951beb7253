"""Digests of values, and how an error names a value that has none."""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import Any

import xxhash

_ATTRIBUTE = "datacache_fingerprint"
REMEDY = f"set the function's attribute {_ATTRIBUTE} to a string that you change whenever its results change."
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))


@dataclasses.dataclass(frozen=True)
class Place:
    """How an error names a value: by a path, in the function that names its beginning."""

    path: str
    function: str = ""

    def __str__(self) -> str:
        return f"{self.path} in {self.function}" if self.function else self.path

    def attribute(self, name: str) -> Place:
        """The place of an attribute."""
        return Place(f"{self.path}.{name}", self.function)

    def item(self, key: Any) -> Place:
        """The place of an element."""
        told = repr(key) if type(key) in PLAIN else f"a {type(key).__name__}"
        return Place(f"{self.path}[{told[:60]}]", self.function)

    def name(self, name: str) -> Place:
        """The place of what has this name in the function at this place."""
        return Place(name, str(self))


def digest(*parts: str | bytes) -> bytes:
    """16 bytes that differ for other parts, whatever these contain."""
    found = xxhash.xxh3_128()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        found.update(len(encoded).to_bytes(8, "little"))
        found.update(encoded)
    return found.digest()


def plain(value: Any) -> bytes:
    """The digest of a value of one of the kinds PLAIN."""
    told = value if isinstance(value, str | bytes) else f"{value:x}" if isinstance(value, int) else repr(value)
    return digest(type(value).__name__, told)


def given(value: Any) -> str | None:
    """The fingerprint that an object has been given; a class that has an answer to every name gives none."""
    try:
        inspect.getattr_static(value.__func__ if isinstance(value, types.MethodType) else value, _ATTRIBUTE)
        own = getattr(value, _ATTRIBUTE)
    except Exception:  # an object may raise anything
        return None
    return own if isinstance(own, str) else None


def refusal(
    value: Any, where: Place, reason: str = "whose content cannot be compared with a later one's"
) -> ValueError:
    """The error for a value that has no digest."""
    return ValueError(
        f"The decode function depends on {where}, a {type(value).__name__}, {reason}: pass plain values (numbers, "
        f"strings, arrays) to it, or {REMEDY}"
    )
