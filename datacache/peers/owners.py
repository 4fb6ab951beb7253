"""Which node is asked for which samples of a batch."""

from __future__ import annotations

import concurrent.futures
from typing import NamedTuple

import numpy as np

from datacache.peers.client import Answer, Client
from datacache.world import World


class Asked(NamedTuple):
    """Rows of a batch, int64 [n], that their owner was asked for, and the future of its answer."""

    rows: np.ndarray
    answer: concurrent.futures.Future[Answer]


class Nobody:
    """Stands in for owners if nodes do not ask each other."""

    def ask(self, indices: np.ndarray, rows: np.ndarray) -> tuple[list[Asked], np.ndarray]:
        """Asks the owners for samples of a batch.

        Args:
            indices: uint64 [b], the batch.
            rows: int64 [n], the rows that are wanted.

        Returns:
            The requests, and those rows that no other node can be asked for.
        """
        return [], rows

    def close(self) -> None:
        """Gives up pending requests; calling it again does nothing."""


class Owners(Nobody):
    """The other nodes."""

    def __init__(self, client: Client, world: World, samples: int):
        """Takes the client, the world, and the total number of samples."""
        self._client, self._node = client, world.node
        self._starts = np.array([each.start for each in world.shares(samples)], np.uint64)

    def ask(self, indices: np.ndarray, rows: np.ndarray) -> tuple[list[Asked], np.ndarray]:
        owners = np.searchsorted(self._starts, indices[rows], side="right") - 1
        asked, left = [], [rows[owners == self._node]]
        for owner in np.unique(owners[owners != self._node]):
            wanted, most = rows[owners == owner], self._client.samples_at_a_time
            for part in (wanted[begin : begin + most] for begin in range(0, len(wanted), most)):
                answer = self._client.ask(int(owner), indices[part])
                if answer is None:
                    left.append(part)
                else:
                    asked.append(Asked(part, answer))
        return asked, np.concatenate(left)

    def close(self) -> None:
        self._client.close()
