"""How a process joins its peers: it serves where it is its node's first, and asks in any case."""

from __future__ import annotations

import os
from pathlib import Path

from datacache import files
from datacache.counters import Counters
from datacache.peers.client import Client
from datacache.peers.link import Caller, Patience
from datacache.peers.owners import Owners
from datacache.peers.server import Server, Shelf
from datacache.world import World


class Serving:
    """That this process serves its node's samples, or that another one does."""

    def __init__(self, server: Server | None = None, lock: int | None = None):
        """Takes the server, and the file that is held for as long."""
        self._server, self._lock = server, lock

    def close(self) -> None:
        """Stops serving; calling it again does nothing."""
        if self._server is not None:
            self._server.close()
        if self._lock is not None:
            os.close(self._lock)
        self._server = self._lock = None


def serve(world: World, data: str, shelf: Shelf, counters: Counters, directory: Path, workers: int) -> Serving:
    """Serves, where no other process of this node does yet; its processes find out by a lock in their directory.

    Raises:
        OSError: where the address cannot be bound to.
    """
    assert world.bind is not None and world.secret is not None
    lock = files.take(directory / f"serving-{world.node}")
    if lock is None:
        return Serving()
    try:
        server = Server(world.bind, world.node, data, world.secret, shelf, counters, world.encrypt, workers)
    except BaseException:
        os.close(lock)
        raise
    return Serving(server, lock)


def meet(world: World, data: str, sample_bytes: int, samples: int, timeout: float, counters: Counters) -> Owners:
    """Gets ready to ask the owners of what this node does not own."""
    assert world.secret is not None
    caller = Caller(world.node, data, world.secret, sample_bytes, Patience(timeout), counters, world.encrypt)
    return Owners(Client(world.peers, caller), world, samples)
