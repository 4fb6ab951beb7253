"""The end of a cache: everything that it has open is closed once, when it is asked for or the process ends."""

from __future__ import annotations

import atexit
import logging
import os
import weakref

from datacache import waiting
from datacache.counters import Counters
from datacache.levels import Level
from datacache.peers.owners import Nobody
from datacache.peers.start import Idle
from datacache.store import Store
from datacache.workers import Workers

PATIENCE = 5.0  # seconds to wait for running reads when a process is about to end
_log = logging.getLogger(__name__)


class Closing:
    """Closes what a cache has open, at the latest when nothing refers to the cache or the process ends."""

    def __init__(
        self,
        cache: object,
        workers: Workers,
        owners: Nobody,
        serving: Idle,
        levels: list[Level],
        store: Store,
        counters: Counters,
    ):
        """Takes the cache and what it has open."""
        parts = (os.getpid(), workers, owners, serving, levels, store, counters)
        self._finalizer = weakref.finalize(cache, _stop, *parts)
        self._finalizer.atexit = False  # `_end_all` does it with less patience
        _open.add(self)

    def end(self, patience: float | None = None) -> None:
        """Closes everything, if that has not happened; waits so many seconds for running reads, None without limit."""
        detached = self._finalizer.detach()
        if detached is not None:
            _stop(*detached[2], patience=patience)


def close(owners: Nobody, serving: Idle, levels: list[Level], store: Store, counters: Counters) -> None:
    """Closes what needs no threads, also of a cache that could not be opened."""
    owners.close()
    serving.close()
    for level in reversed(levels):
        level.close()
    counters.save(store.stats)
    store.close()
    waiting.settle()


def _stop(
    process: int,
    workers: Workers,
    owners: Nobody,
    serving: Idle,
    levels: list[Level],
    store: Store,
    counters: Counters,
    *,
    patience: float | None = None,
) -> None:
    if os.getpid() != process:  # everything belongs to the parent
        return
    owners.close()  # threads that wait for them go on
    ended = [workers.close(patience), serving.close(patience)]
    if all(ended):
        close(owners, serving, levels, store, counters)
    else:  # levels stay open, because threads use them
        _log.warning("datacache: reads of %s have not finished and are abandoned.", store.source.identity)


_open: weakref.WeakSet[Closing] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for each in list(_open):
        each.end(PATIENCE)
