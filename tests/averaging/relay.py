"""A network that drops, duplicates and reorders: the endpoints of one process send real datagrams through it."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import threading
from typing import NamedTuple

STATE = 1  # the kind, in byte 2, of datagrams about a rank instead of a segment
SO_RCVBUFFORCE = 33  # Linux


class Habits(NamedTuple):
    """What a relay does to datagrams, at random.

    Attributes:
        drops: probability of dropping one.
        repeats: probability of forwarding it twice.
        holds: probability of forwarding it only after the next one.
        seed: of the random numbers.
    """

    drops: float = 0.0
    repeats: float = 0.0
    holds: float = 0.0
    seed: int = 0


class Relay:
    """Forwards between all ranks; each has a port here for each of the others.

    Attributes:
        dropped: number of segments it has dropped.
    """

    def __init__(self, ranks: int, habits: Habits):
        self._habits, self._random = habits, random.Random(habits.seed)
        self._ways = {(rank, to): _socket() for rank in range(ranks) for to in range(ranks) if rank != to}
        self._ports = [0] * ranks
        self._held: dict[tuple[int, int], bytes] = {}
        self._cut: set[int] = set()
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.dropped = 0

    def start(self, ports: list[int]) -> None:
        """Starts forwarding to the ports on which the ranks listen."""
        self._ports = ports
        self._thread.start()

    def ports_for(self, rank: int) -> list[int]:
        """The ports at which a rank can reach the others."""
        ranks = range(len(self._ports))
        return [0 if to == rank else self._ways[rank, to].getsockname()[1] for to in ranks]

    def cut_off(self, rank: int) -> None:
        """Drops all that a rank sends from now on."""
        self._cut.add(rank)

    def mend(self, rank: int) -> None:
        """Stops dropping what a rank sends."""
        self._cut.discard(rank)

    def close(self) -> None:
        """Stops forwarding."""
        self._ended = True
        self._thread.join()
        for way in self._ways.values():
            way.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for ends, way in self._ways.items():
                selector.register(way, selectors.EVENT_READ, ends)
            while not self._ended:
                for key, _ in selector.select(0.05):
                    self._hand_on(key.fileobj, key.data)

    def _hand_on(self, way: socket.socket, ends: tuple[int, int]) -> None:
        for _ in range(64):
            try:
                datagram = way.recv(65536)
            except BlockingIOError:
                return
            rank, to = ends
            if rank in self._cut or self._random.random() < self._habits.drops:
                self.dropped += datagram[2] != STATE
                continue
            leaving = [datagram] * (2 if self._random.random() < self._habits.repeats else 1)
            held = self._held.pop(ends, None)
            if held is not None:
                leaving.append(held)
            elif self._random.random() < self._habits.holds:
                self._held[ends] = leaving.pop()
            for each in leaving:
                way.sendto(each, ("127.0.0.1", self._ports[to]))


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    with contextlib.suppress(PermissionError):  # otherwise the system's limit has to do
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 << 20)
    made.bind(("127.0.0.1", 0))
    return made
