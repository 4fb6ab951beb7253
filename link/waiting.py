"""Waits for answers, and for whatever else is a future."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Collection
from typing import Any

_HEED = 1.0  # seconds until a signal is acted on


def wait(futures: Collection[concurrent.futures.Future[Any]]) -> None:
    """Waits until all have ended, or one has failed, which may take for ever; Ctrl-C ends it within a second.

    A signal that comes just before a thread begins to wait does not end its wait: Python acts on it afterwards. So this
    waits again and again.
    """
    waits = True
    while waits:
        done, left = concurrent.futures.wait(futures, _HEED, concurrent.futures.FIRST_EXCEPTION)
        waits = bool(left) and all(each.exception() is None for each in done)
