"""The end of a cache: everything that it has open is closed once, when it is asked for or the process ends."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import NamedTuple

from datacache import waiting
from datacache.counters import Counters
from datacache.levels import Level
from datacache.peers.owners import Nobody
from datacache.peers.start import Idle
from datacache.store import Store
from datacache.workers import Workers

PATIENCE = 5.0  # seconds to wait for running reads when a process is about to end
_log = logging.getLogger(__name__)


class Parts(NamedTuple):
    """What a cache has open, but for its workers."""

    owners: Nobody
    serving: Idle
    levels: list[Level]
    store: Store
    counters: Counters

    def close(self) -> None:
        """Closes what needs no threads, also of a cache that could not be opened."""
        self.owners.close()
        self.serving.close()
        for level in reversed(self.levels):
            level.close()
        self.counters.save(self.store.stats)
        self.store.close()
        waiting.settle()


class Closing:
    """Closes what a cache has open, at the latest when nothing refers to the cache or the process ends."""

    def __init__(self, cache: object, workers: Workers, parts: Parts):
        """Takes the cache and what it has open."""
        self._finalizer = weakref.finalize(cache, _stop, os.getpid(), workers, parts)
        self._finalizer.atexit = False  # `_end_all` does it with less patience
        _open.add(self)

    def end(self, patience: float | None = None) -> None:
        """Closes everything, if that has not happened; waits so many seconds for running reads, None without limit."""
        detached = self._finalizer.detach()
        if detached is not None:
            _stop(*detached[2], patience=patience)


def _stop(process: int, workers: Workers, parts: Parts, *, patience: float | None = None) -> None:
    if os.getpid() != process:  # everything belongs to the parent
        return
    parts.owners.close()  # threads that wait for them go on
    ended = [workers.close(patience), parts.serving.close(patience)]
    if all(ended):
        parts.close()
    else:  # levels stay open, because threads use them
        _log.warning("datacache: reads of %s have not finished and are abandoned.", parts.store.source.identity)


_open: weakref.WeakSet[Closing] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for each in list(_open):
        each.end(PATIENCE)
