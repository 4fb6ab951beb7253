"""How a process joins its peers: one process of a node serves, the others stand by, and all ask."""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

from datacache import files
from datacache.counters import Counters
from datacache.peers.client import Caller, Client
from datacache.peers.owners import Owners
from datacache.peers.server import Server, Shelf
from datacache.world import World
from link import Patience

_LOOK = 0.5  # seconds between two checks whether the serving process has ended
_log = logging.getLogger(__name__)


class Idle:
    """Stands in for a `Standby` if nodes do not ask each other."""

    def close(self, patience: float | None = None) -> bool:
        """Stops; calling it again does nothing. Argument and result are those of `Server.close`."""
        return True


class Standby(Idle):
    """Serves at an address as soon as no other process of this node does, whether that one has ended or was killed.

    Processes detect this by a lock for each address, which the system releases when a process ends. The next one
    creates server and port anew; it serves the memory that the processes share.
    """

    def __init__(self, locks: Path, address: str, start: Callable[[], Server]):
        """Takes a file for locks, the address, and a function that starts a server; the first process serves on return.

        Raises:
            OSError: if no other process serves, and the address cannot be bound.
        """
        self._locks, self._number, self._start = locks, zlib.crc32(address.encode()), start
        self._server: Server | None = None
        self._lock: int | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="datacache-standby", daemon=True)
        if not self._try():
            self._thread.start()

    def close(self, patience: float | None = None) -> bool:
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        ended = self._server is None or self._server.close(patience)
        if self._lock is not None:
            os.close(self._lock)
        self._server = self._lock = None
        return ended

    def _wait(self) -> None:
        warned = False
        while not self._closing.wait(_LOOK):
            try:
                if self._try():
                    _log.info("datacache: this process now serves its node's samples.")
                    return
            except OSError as error:  # the port may be free a moment later; until then peers read elsewhere
                if not warned:
                    _log.warning("datacache: this process cannot yet take over from the one that served: %s.", error)
                warned = True

    def _try(self) -> bool:
        """Serves if no process does; returns whether this process serves."""
        lock = files.take(self._locks, self._number)
        if lock is None:
            return False
        try:
            self._server = self._start()
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        return True


def serve(world: World, data: str, shelf: Shelf, counters: Counters, directory: Path, workers: int) -> Standby:
    """Serves, now or when the process of this node that currently serves has ended.

    Raises:
        OSError: as `Standby`.
    """
    bind, secret = world.bind, world.secret
    assert bind is not None and secret is not None

    def start() -> Server:
        return Server(bind, world.node, data, secret, shelf, counters, world.encrypt, workers)

    return Standby(directory / "serving", bind, start)


def meet(world: World, data: str, sample_bytes: int, samples: int, timeout: float, counters: Counters) -> Owners:
    """Prepares to ask the owners for what this node does not own."""
    assert world.secret is not None
    caller = Caller(world.node, data, world.secret, sample_bytes, Patience(timeout), counters, world.encrypt)
    return Owners(Client(world.peers, caller), world, samples)
