"""Which clients may still contact a server."""

from __future__ import annotations

import threading


class Presence:
    """Which clients may still contact a server."""

    def __init__(self, ranks: int):
        """Takes the number of clients."""
        self._here = set(range(ranks))
        self._nobody = threading.Event()

    def shows(self, client: int) -> None:
        """Notes that a client has sent something."""
        self._here.add(client)

    def ends(self, client: int) -> None:
        """Notes that a client has said goodbye, or that its connection has ended."""
        self._here.discard(client)
        if not self._here:
            self._nobody.set()

    def absent(self, ranks: int) -> set[int]:
        """The clients, out of this many, that have ended or are gone."""
        return set(range(ranks)) - self._here

    def wait_for_nobody(self, seconds: float) -> bool:
        """Waits until all have ended; returns whether they have."""
        return self._nobody.wait(seconds)
