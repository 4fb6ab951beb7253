"""What a process counts: where each sample came from, and what each stall waited for."""

from __future__ import annotations

import collections
import os
import threading
import time
from pathlib import Path

from datacache import files


class Counters:
    """Numbers by name, counted by several threads.

    Names are "samples.LEVEL" and "bytes.LEVEL" for where samples came from (memory, peers, decoded, disk, source),
    "stalls.STAGE" and "seconds.STAGE" for what a reader waited for (peers, queue, another process, disk, source,
    decode), "damaged.LEVEL" for records taken out, "not kept.LEVEL" for records that did not fit, "served.samples" and
    "served.bytes" for what peers got from here, "failures.peers" for how often one was left alone from then on, and
    "refused.peers" for connections refused.
    """

    def __init__(self) -> None:
        self._numbers: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        self._started = time.time()

    def add(self, name: str, amount: float = 1) -> None:
        """Counts."""
        with self._lock:
            self._numbers[name] += amount  # type: ignore[assignment]

    def numbers(self) -> dict[str, float]:
        """All numbers so far."""
        with self._lock:
            return dict(self._numbers)

    def save(self, directory: Path) -> None:
        """Writes them to a file of this process's own, for `total`."""
        directory.mkdir(exist_ok=True)
        name = f"{int(self._started * 1000)}-{os.getpid()}.json"
        files.write_json(directory / name, {"started": self._started, "numbers": self.numbers()})


def total(directory: Path) -> dict[str, float]:
    """The sums over all processes that have saved theirs."""
    sums: collections.Counter[str] = collections.Counter()
    for path in directory.glob("*.json"):
        saved = files.read_json(path) or {}
        sums.update(saved.get("numbers", {}))
    return dict(sums)
