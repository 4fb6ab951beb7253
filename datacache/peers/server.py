"""The serving side: its link's thread answers from the memory level, and a few threads fetch missing samples."""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import link
from datacache.buffers import Buffers
from datacache.counters import Counters
from datacache.levels import Record
from datacache.native import address, library
from datacache.peers.protocol import CHECKSUM, INDEX, LABEL, protocol, samples_at_a_time
from datacache.peers.words import PeerEvents
from datacache.workers import Workers

_MOST_FILLING = 65536  # samples being fetched for others; requests beyond that get "not found"


class Shelf(NamedTuple):
    """What a server serves from.

    Attributes:
        owned: the samples.
        sample_bytes: of each.
        gather: copies what is in memory, as `Level.gather`; called by several threads at once.
        fetch: maps index to record: gets it from below and keeps it in memory, if it fits; called by several threads at
            once.
    """

    owned: range
    sample_bytes: int
    gather: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    fetch: Callable[[int], Record]


class _Order:
    """A request whose samples are being fetched."""

    def __init__(self, request: link.Request, indices: np.ndarray, missing: list[int]):
        self.request, self.indices = request, indices
        self.fetching: dict[int, concurrent.futures.Future[Record]] = {}
        self._left, self._lock = len(missing), threading.Lock()

    def is_last(self) -> bool:
        """Counts a fetched sample; returns whether it was the last one."""
        with self._lock:
            self._left -= 1
            return self._left == 0


class Server:
    """Serves a node's samples to its peers until it is closed."""

    def __init__(
        self,
        bind: str,
        node: int,
        data: str,
        secret: bytes,
        shelf: Shelf,
        counters: Counters,
        encrypt: bool = False,
        workers: int = 4,
    ):
        """Binds to exactly this address and starts to serve.

        Args:
            bind: host:port.
            node: number of this node.
            data: identifies the samples: requests for other data are refused.
            secret: of the job.
            shelf: what is served.
            counters: of the process.
            encrypt: serve by CURVE only.
            workers: number of threads that fetch.

        Raises:
            OSError: if the address cannot be bound.
        """
        self._shelf, self._counters, self._process = shelf, counters, os.getpid()
        self._filling, self._lock = 0, threading.Lock()
        self._buffers, self._buffer_bytes = Buffers(0), 0
        self._closing = False
        self._workers = Workers(workers, "datacache-serve")
        spoken, events = protocol(shelf.sample_bytes), PeerEvents(counters, node)
        try:
            self._link = link.Server(
                bind, node, data, secret, spoken, self._answer, events, encrypt, "datacache-server"
            )
        except OSError as error:
            raise OSError(
                error.errno,
                f"Peers cannot be served at {bind} ({error.__cause__}): expected an address of this machine and a "
                "port that is free; each DataCache of a process needs its own port",
            ) from None

    def close(self, patience: float | None = None) -> bool:
        """Stops; those who wait for samples get them from their own lower levels. Calling it again does nothing.

        Args:
            patience: seconds to wait for running fetches, as for `Workers.close`.

        Returns:
            Whether all fetches have ended.
        """
        if self._closing or os.getpid() != self._process:
            return True
        self._closing = True
        self._link.close()
        return self._workers.close(patience)

    def _answer(self, request: link.Request) -> None:
        count, payload = request.fields["count"], request.payload
        most = samples_at_a_time(self._shelf.sample_bytes)
        if len(payload) != count * INDEX.itemsize or not 0 < count <= most:
            raise link.WireError(f"a request for {count} samples in {len(payload)} bytes, at most {most} are allowed")
        indices = np.frombuffer(payload, INDEX).astype(np.uint64)
        rows, labels, found = self._gather(indices)
        missing = sorted({index for index in map(int, indices[~found]) if index in self._shelf.owned})
        if missing and self._begin_to_fill(len(missing)):
            self._fill(_Order(request, indices, missing), missing)
        else:
            self._reply(request, indices, rows, labels, found)

    def _begin_to_fill(self, count: int) -> bool:
        """Whether this many more samples may be fetched for others."""
        with self._lock:
            fits = self._filling + count <= _MOST_FILLING
            self._filling += count if fits else 0
            return fits

    def _fill(self, order: _Order, missing: list[int]) -> None:
        for index in missing:
            order.fetching[index] = self._workers.submit(self._shelf.fetch, index)
        for future in list(order.fetching.values()):
            future.add_done_callback(lambda _: self._finish(order) if order.is_last() else None)

    def _finish(self, order: _Order) -> None:
        """Answers, on the thread that fetched the last sample."""
        with self._lock:
            self._filling -= len(order.fetching)
        if self._closing or not order.request.is_wanted:
            return
        rows, labels, found = self._gather(order.indices)
        for row in np.flatnonzero(~found):
            record = _result(order.fetching.get(int(order.indices[row])))
            if record is not None and len(record.payload) == rows.shape[1]:
                rows[row] = np.frombuffer(record.payload, np.uint8)
                labels[row], found[row] = record.label, True
        self._reply(order.request, order.indices, rows, labels, found)

    def _gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        wanted = len(indices) * self._shelf.sample_bytes
        with self._lock:
            if wanted > self._buffer_bytes:
                self._buffers, self._buffer_bytes = Buffers(wanted), wanted
            buffer = self._buffers.take()
        rows = buffer[:wanted].reshape(len(indices), self._shelf.sample_bytes)
        labels = np.empty(len(indices), np.int64)
        return rows, labels, self._shelf.gather(indices, rows, labels)

    def _reply(
        self, request: link.Request, indices: np.ndarray, rows: np.ndarray, labels: np.ndarray, found: np.ndarray
    ) -> None:
        if not found.all():
            rows, labels, indices = rows[found], labels[found], indices[found]
        checksums = np.empty(len(indices), np.uint64)
        places = [address(array) for array in (indices, labels, checksums)]
        library().datacache_records_checksums(address(rows), rows.shape[1], len(indices), *places)
        self._counters.add("served.samples", len(indices))
        self._counters.add("served.bytes", rows.nbytes)
        request.answer(
            "have",
            rows,
            found=found.astype(np.uint8).tobytes(),
            labels=labels.astype(LABEL).tobytes(),
            checksums=checksums.astype(CHECKSUM).tobytes(),
        )


def _result(future: concurrent.futures.Future[Record] | None) -> Record | None:
    """The fetched record; None if it could not be fetched, which the asking node will find out and report by itself."""
    if future is None or future.cancelled() or future.exception() is not None:
        return None
    return future.result()
