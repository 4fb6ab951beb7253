"""Waits for answers, and for whatever else may never come.

A signal that comes just before a thread begins to wait does not end its wait, nor does one that another thread takes:
Python acts on it afterwards. So these wait again and again.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Collection
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_HEED = 1.0  # seconds until a signal is acted on


def wait(futures: Collection[concurrent.futures.Future[Any]]) -> None:
    """Waits until all have ended, or one has failed, which may take for ever; Ctrl-C ends it within a second."""
    waits = True
    while waits:
        done, left = concurrent.futures.wait(futures, _HEED, concurrent.futures.FIRST_EXCEPTION)
        waits = bool(left) and all(each.exception() is None for each in done)


def result_of(future: concurrent.futures.Future[_Result]) -> _Result:
    """What a future returns or raises, once it has ended, as `wait` waits for it."""
    wait([future])
    return future.result()


def wait_until(is_so: Callable[[], bool], changed: threading.Condition) -> None:
    """Waits as `wait` does until something is so; the caller holds `changed`, which is notified when it may be."""
    while not changed.wait_for(is_so, _HEED):
        pass
