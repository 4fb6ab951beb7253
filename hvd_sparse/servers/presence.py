"""Which of its clients a server may still hear of."""

from __future__ import annotations

import threading


class Presence:
    """Which clients a server may still hear of."""

    def __init__(self, ranks: int):
        """Takes how many there are."""
        self._here = set(range(ranks))
        self._nobody = threading.Event()

    def shows(self, client: int) -> None:
        """A client has said something."""
        self._here.add(client)

    def ends(self, client: int) -> None:
        """A client has said goodbye, or its connection has ended."""
        self._here.discard(client)
        if not self._here:
            self._nobody.set()

    def absent(self, ranks: int) -> set[int]:
        """Of so many clients, those that have ended or are gone."""
        return set(range(ranks)) - self._here

    def wait_for_nobody(self, seconds: float) -> bool:
        """Waits until all have ended; says whether they have."""
        return self._nobody.wait(seconds)
