"""Sets of the objects that are alive, shared by threads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

_Each = TypeVar("_Each")


class Living(Generic[_Each]):
    """The objects that were added and are still alive, in no order.

    One thread may add an object while another goes through all: a `weakref.WeakSet` would raise a RuntimeError there.
    """

    def __init__(self) -> None:
        self._held: weakref.WeakSet[_Each] = weakref.WeakSet()
        self._lock = threading.RLock()  # collecting garbage in here may run a finalizer that looks, too

    def add(self, each: _Each) -> None:
        """Adds an object, which this does not keep alive."""
        with self._lock:
            self._held.add(each)

    def __iter__(self) -> Iterator[_Each]:
        with self._lock:
            return iter(list(self._held))
