"""What a process counts: where each sample came from, and what each stall waited for."""

from __future__ import annotations

import collections
import errno
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

from datacache import files


class Counters:
    """Numbers by name, which several threads may increase.

    Names are "samples.LEVEL" and "bytes.LEVEL" for where samples came from (memory, peers, decoded, disk, source),
    "stalls.STAGE" and "seconds.STAGE" for what a reader waited for (peers, queue, another process, disk, source,
    decode), "damaged.LEVEL" for records removed, "not kept.LEVEL" for records that did not fit, "served.samples" and
    "served.bytes" for what peers got from here, "failures.peers" for how often a peer was left alone from then on, and
    "refused.peers" for connections refused.
    """

    def __init__(self) -> None:
        self._numbers: collections.Counter[str] = collections.Counter()
        self._others: list[Callable[[], Mapping[str, float]]] = []
        self._lock = threading.Lock()
        self._started = time.time()
        _all.add(self)

    def add(self, name: str, amount: float = 1) -> None:
        """Increases a number."""
        with self._lock:
            self._numbers[name] += amount  # type: ignore[assignment]

    def include(self, numbers: Callable[[], Mapping[str, float]]) -> None:
        """Adds numbers counted elsewhere, which are read whenever all numbers are."""
        with self._lock:
            self._others.append(numbers)

    def numbers(self) -> dict[str, float]:
        """All numbers so far."""
        with self._lock:
            sums = self._numbers.copy()
            for others in self._others:
                sums.update(others())
            return dict(sums)

    def save(self, directory: Path) -> None:
        """Writes the numbers to this process's own file, for `total`; on a full disk they are lost."""
        name = f"{int(self._started * 1000)}-{os.getpid()}.json"
        try:
            directory.mkdir(exist_ok=True)
            files.write_json(directory / name, {"started": self._started, "numbers": self.numbers()})
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise


_all: weakref.WeakSet[Counters] = weakref.WeakSet()


def _begin_anew() -> None:
    """In a forked child: the counts so far are the parent's, and another thread may have held the lock."""
    for each in list(_all):
        each._numbers, each._lock = collections.Counter(), threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)


def total(directory: Path) -> dict[str, float]:
    """The sums over all processes that have saved theirs."""
    sums: collections.Counter[str] = collections.Counter()
    for path in directory.glob("*.json"):
        saved = files.read_json(path) or {}
        sums.update(saved.get("numbers", {}))
    return dict(sums)
