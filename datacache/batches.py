"""Whole batches, gathered from memory; missing samples are fetched ahead, as the order is known."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import link
from datacache.buffers import Buffers
from datacache.counters import Counters
from datacache.elements import Elements, weighted
from datacache.levels import Level
from datacache.order import Schedule
from datacache.peers.owners import Asked, Nobody
from datacache.reader import Fetched, ReadThrough
from datacache.workers import Workers


def refuse_fork(process: int) -> None:
    """Makes sure that this is the process with this id, and not a child that was forked from it.

    Raises:
        RuntimeError: if it is such a child: fetching threads and connections belong to its parent.
    """
    if os.getpid() != process:
        raise RuntimeError(
            f"This cache was opened by process {process}, and process {os.getpid()} was forked from it: only "
            "DataCache.fetch works in a forked child. Open a DataCache in the child itself, with the same arguments: "
            "what is on disk and in memory is shared by both."
        )


class Supply(NamedTuple):
    """Where the samples of batches come from.

    Attributes:
        reader: of this node's levels.
        owners: the other nodes to ask.
        workers: the threads that fetch what is not in memory.
        counters: of the process.
        ahead: number of batches for which samples are fetched ahead.
        owner: closes all of these once nothing refers to it, so a reference is held here.
    """

    reader: ReadThrough
    owners: Nobody
    workers: Workers
    counters: Counters
    ahead: int
    owner: object


class Ahead:
    """What all batches of one rank for one schedule share: their samples are fetched ahead.

    Attributes:
        elements: what users get of the samples.
        layout: of samples as levels keep them.
        schedule: which samples are in which batch.
        rank: the rank that reads the batches.
        ahead: number of batches for which samples are fetched ahead.
        counters: of the process.
    """

    def __init__(self, elements: Elements, schedule: Schedule, rank: int, supply: Supply):
        """Takes what samples are, the schedule, the rank, and the source of samples."""
        self.elements, self.layout, self.schedule, self.rank = elements, elements.layout, schedule, rank
        self.ahead, self.counters = supply.ahead, supply.counters
        self._supply, self._reader, self._owners, self._process = supply, supply.reader, supply.owners, os.getpid()
        self._next = 0  # the first batch whose samples have not been asked for
        self._fetching: dict[int, concurrent.futures.Future[Fetched]] = {}
        self._asked: dict[int, list[Asked]] = {}  # by number of the batch
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.schedule)

    @property
    def memory(self) -> Level:
        """The level that batches are gathered from."""
        return self._reader.memory

    def _request(self, step: int) -> None:
        """Has the missing samples of this batch and of the next ones fetched, each batch once."""
        refuse_fork(self._process)
        with self._lock:
            begin = step if step == 0 else max(step, self._next)  # a new iteration begins at 0
            end = min(step + 1 + self.ahead, len(self))
            self._next = max(begin, end)
            for each in range(begin, end):
                indices = self.schedule.indices(each, self.rank).astype(np.uint64)
                missing = np.flatnonzero(~self._reader.holds(indices))
                self._asked[each], rest = self._owners.ask(indices, missing)
                self._fetch_ahead(indices[rest])

    def _fetch_ahead(self, indices: np.ndarray) -> None:
        """Has samples fetched by the workers; the caller holds the lock."""
        for index in map(int, indices):
            if index not in self._fetching:
                self._fetching[index] = self._supply.workers.submit(self._reader.fetch, index)

    def _forget(self, indices: np.ndarray) -> None:
        """Drops futures of samples that were fetched ahead and are no longer waited for."""
        with self._lock:
            if self._fetching:
                for index in map(int, indices):
                    self._fetching.pop(index, None)

    def _wait_for(self, index: int) -> Fetched:
        with self._lock:
            future = self._fetching.pop(index, None)
        if future is None:  # it was damaged in memory, or another iteration took it
            return self._reader.fetch(index)
        if future.done():
            return future.result()
        queued, started = not future.running(), time.perf_counter()
        fetched = link.result_of(future)
        stage = "queue" if queued else max(fetched.seconds, key=lambda name: fetched.seconds[name])
        self.counters.add(f"stalls.{stage}")
        self.counters.add(f"seconds.{stage}", time.perf_counter() - started)
        return fetched


class Batches(Ahead):
    """Batches of samples of one shape; `read` may be called by several threads, in about rising order."""

    def __init__(self, elements: Elements, schedule: Schedule, rank: int, supply: Supply):
        """As `Ahead`."""
        super().__init__(elements, schedule, rank, supply)
        self._buffers = Buffers(schedule.batch_size * self.layout.size)

    def read(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """A batch.

        Args:
            step: its number.

        Returns:
            Samples [b, ...], aligned to 64 bytes, and labels int64 [b]. The memory is reused once nothing refers to it.

        Raises:
            SourceChangedError, DamagedFileError, DecodeError: from a sample of this batch.
        """
        self._request(step)
        indices = self.schedule.indices(step, self.rank).astype(np.uint64)
        block = self._buffers.take()[: len(indices) * self.layout.size]
        rows, labels = block.reshape(len(indices), self.layout.size), np.empty(len(indices), np.int64)
        found = self._reader.gather(indices, rows, labels)
        self._take_answers(step, indices, rows, labels, found)
        try:
            for row in np.flatnonzero(~found):
                fetched = self._wait_for(int(indices[row]))
                rows[row] = np.frombuffer(fetched.record.payload, np.uint8)
                labels[row] = fetched.record.label
        finally:  # also of a batch that failed: who ignores errors goes on
            self._forget(indices)
        return block.view(self.layout.dtype).reshape(len(indices), *self.layout.shape), labels

    def _take_answers(
        self, step: int, indices: np.ndarray, rows: np.ndarray, labels: np.ndarray, found: np.ndarray
    ) -> None:
        """Takes what peers have sent for a batch, and fetches what they do not have."""
        with self._lock:
            asked = self._asked.pop(step, None)
        if asked is None:  # another iteration took it
            asked, _ = self._owners.ask(indices, np.flatnonzero(~found))
        for wanted, answer in asked:
            if not answer.done():
                started = time.perf_counter()
                link.wait([answer])
                self.counters.add("stalls.peers")
                self.counters.add("seconds.peers", time.perf_counter() - started)
            placed = answer.result().place(indices[wanted], wanted, rows, labels)
            found[wanted] |= placed
            if placed.any():
                self.counters.add("samples.peers", int(placed.sum()))
                self.counters.add("bytes.peers", int(placed.sum()) * rows.shape[1])
            with self._lock:
                self._fetch_ahead(indices[wanted[~placed]])


class VaryingBatches(Ahead):
    """Batches of samples whose shapes vary; `read` may be called by several threads, in about rising order."""

    def read(self, step: int) -> tuple[list[np.ndarray], np.ndarray]:
        """A batch.

        Args:
            step: its number.

        Returns:
            Samples, a list of b read-only arrays, each in its own shape, and labels int64 [b].

        Raises:
            SourceChangedError, DamagedFileError, DecodeError: from a sample of this batch.
        """
        self._request(step)
        indices = self.schedule.indices(step, self.rank).astype(np.uint64)
        kept = self._reader.collect(indices)
        try:
            records = [record or self._wait_for(int(index)).record for index, record in zip(indices, kept, strict=True)]
        finally:
            self._forget(indices)
        with self._lock:
            self._asked.pop(step, None)  # it is empty, as varying shapes exclude peers
        labels = np.array([record.label for record in records], np.int64)
        return [self.layout.unpack(record.payload) for record in records], labels


AnyBatches: TypeAlias = Batches | VaryingBatches


def elements_of(batches: AnyBatches, step: int) -> Any:
    """A batch in NumPy, as users get it; errors as from `read`."""
    made = batches.elements.batch(*batches.read(step))
    if batches.schedule.weights is None:
        return made
    begin, end = batches.schedule.span(step, batches.rank)
    return weighted(made, batches.schedule.weights[begin:end], _product)


def _product(parts: Any, weights: np.ndarray) -> Any:
    """Weights of a user, in any nest, times these, [b]."""
    if isinstance(parts, dict):
        return {key: _product(part, weights) for key, part in parts.items()}
    if isinstance(parts, tuple):
        return tuple(_product(part, weights) for part in parts)
    if isinstance(parts, list):
        return [part * weight.astype(part.dtype) for part, weight in zip(parts, weights, strict=True)]
    return parts * weights.astype(parts.dtype).reshape(-1, *[1] * (parts.ndim - 1))
