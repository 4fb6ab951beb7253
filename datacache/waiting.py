"""Reports when a process has waited long for others, and which processes it waits for.

A process that was stopped keeps its locks, and would otherwise silently hold up all others.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_AFTER = 5.0  # seconds before the first message
_SELDOM = 60.0  # seconds between two messages, in the end
_LOOK = 0.5  # seconds between two checks
_log = logging.getLogger(__name__)

Holders = Callable[[], Sequence[int]]


class _Wait(NamedTuple):
    what: str
    holders: Holders
    since: float


class _Watch:
    """Checks everything that this process waits for, on a thread that lives as long as there is anything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits: dict[int, _Wait] = {}  # oldest first
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None  # while it runs
        self._settled = threading.Event()
        self._interval, self._silent_until = _AFTER, 0.0

    def begin(self, wait: _Wait) -> int:
        """Begins to watch a wait; returns the number with which to end it."""
        with self._lock:
            number = next(self._numbers)
            self._waits[number] = wait
            if self._thread is None:
                thread = threading.Thread(target=self._look, name="datacache waiting", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread starts while Python shuts down: nothing is reported
                    thread.start()
                    self._thread = thread
        return number

    def end(self, number: int) -> None:
        """Ends the watch that `begin` has begun."""
        with self._lock:
            del self._waits[number]

    def settle(self) -> None:
        """Ends the thread if nothing is waited for, and waits for its end."""
        with self._lock:
            thread = None if self._waits else self._thread
            self._settled.set()
        if thread is not None:
            thread.join()

    def _look(self) -> None:
        while True:
            self._settled.wait(_LOOK)
            now = time.monotonic()
            with self._lock:
                self._settled.clear()
                if not self._waits:
                    self._thread = None
                    return
                oldest, others = next(iter(self._waits.values())), len(self._waits) - 1
                if now - oldest.since < _AFTER or now < self._silent_until:
                    continue
                self._silent_until = now + self._interval
                self._interval = min(2 * self._interval, _SELDOM)
            _say(oldest, others, now - oldest.since)


_watch = _Watch()


def _watch_anew() -> None:
    """In a forked child, which has neither the thread nor its waits, and perhaps a lock that is never released."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_watch_anew)


@contextlib.contextmanager
def told(what: str, holders: Holders = tuple) -> Iterator[None]:
    """Wraps code that may wait for other processes: logs a long wait after some seconds, then less and less often.

    Args:
        what: what is waited for, as in "waiting for ...".
        holders: returns the processes that hold it, as far as known; called when there is something to report.
    """
    watch = _watch
    number = watch.begin(_Wait(what, holders, time.monotonic()))
    try:
        yield
    finally:
        watch.end(number)


def settle() -> None:
    """Ends the watching thread, if this process waits for nothing; called when a cache is closed."""
    _watch.settle()


def holders_of(descriptor: int, first: int = 0) -> list[int]:
    """The processes that hold a lock on an open file, by its first byte; only those that this user may inspect."""
    inode = str(os.fstat(descriptor).st_ino)
    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if _holds(process, inode, str(first))]


def _holds(process: Path, inode: str, first: str) -> bool:
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        for file in os.scandir(process / "fdinfo"):
            with contextlib.suppress(OSError):
                if any(_is_lock(line, inode, first) for line in Path(file.path).read_text().splitlines()):
                    return True
    return False


def _is_lock(line: str, inode: str, first: str) -> bool:
    """Parses a line such as "lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:2146665 7 7"; devices have several notations."""
    words = line.split()
    return words[:1] == ["lock:"] and len(words) > 7 and words[6].rpartition(":")[2] == inode and words[7] == first


def _say(wait: _Wait, others: int, seconds: float) -> None:
    held = " and ".join(_describe(process) for process in wait.holders()) or "a process that cannot be identified"
    more = f", and for {others} more" if others else ""
    _log.warning("datacache: waiting for %s for %.0f s now%s; it is held by %s.", wait.what, seconds, more, held)


def _describe(process: int) -> str:
    """A process with its command, and what to do if it was stopped."""
    if process == os.getpid():
        return f"this process itself ({process})"
    try:
        command = " ".join(Path(f"/proc/{process}/cmdline").read_text(errors="replace").replace("\0", " ").split())
        state = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return f"process {process}, which has ended"
    told_of = f"process {process} ({command[:80]})"
    if state not in "Tt":
        return told_of
    return f"{told_of}, which is stopped: continue it with `kill -CONT {process}`, or end it"
