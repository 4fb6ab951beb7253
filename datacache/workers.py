"""Threads that do work for others, and do not keep the process from ending."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

_FETCHING = 32  # threads of a node that fetch, at least: most of them wait for the source while few decode


def threads_of(ranks: int) -> int:
    """The number of threads with which one of this many ranks of a node fetches, by default."""
    return max(2, max(_FETCHING, 4 * len(os.sched_getaffinity(0))) // ranks)


class _Task(NamedTuple):
    future: concurrent.futures.Future
    work: Callable[..., Any]
    arguments: tuple[Any, ...]


class Workers:
    """Threads that do work in the order in which it was submitted.

    With `concurrent.futures.ThreadPoolExecutor` the process waits, at its end, for everything that was submitted,
    needed or not: with a source that is slow, or hangs, Ctrl-C would take minutes, or forever. These threads are
    daemons.
    """

    def __init__(self, count: int, name: str):
        """Takes the largest number of threads, which are started as needed, and their name."""
        self._count, self._name = count, name
        self._tasks: collections.deque[_Task] = collections.deque()
        self._running: set[concurrent.futures.Future] = set()
        self._threads: list[threading.Thread] = []
        self._idle, self._closed = 0, False
        self._changed = threading.Condition()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> concurrent.futures.Future:
        """Has a thread call work(*arguments); the future can be cancelled before the call begins.

        Raises:
            RuntimeError: after `close`.
        """
        task = _Task(concurrent.futures.Future(), work, arguments)
        with self._changed:
            if self._closed:
                raise RuntimeError("The cache is closed.")
            self._tasks.append(task)
            if self._idle < len(self._tasks) and len(self._threads) < self._count:
                name = f"{self._name}_{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()
            self._changed.notify()
        return task.future

    def close(self, patience: float | None = None) -> bool:
        """Cancels work that has not begun, and waits for the rest; calling it again waits again.

        Args:
            patience: seconds; work that takes longer is reported as failed, so that nothing waits for it, and continues
                in its thread. None waits as long as it takes.

        Returns:
            Whether all work has ended.
        """
        with self._changed:
            self._closed = True
            cancelled = [task.future for task in self._tasks]
            self._tasks.clear()
            self._changed.notify_all()
        for future in cancelled:
            if future.cancel():
                future.set_running_or_notify_cancel()  # wakes those that wait for several futures
        end = None if patience is None else time.monotonic() + patience
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(None if end is None else max(0.0, end - time.monotonic()))
        with self._changed:
            left = list(self._running)
        for future in left:
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # it has finished meanwhile
                future.set_exception(RuntimeError("The cache was closed while this was being read."))
        return not left

    def _run(self) -> None:
        while (task := self._take()) is not None:
            if task.future.set_running_or_notify_cancel():
                self._do(task)
            with self._changed:
                self._running.discard(task.future)
            del task  # it may refer to what is no longer needed

    def _take(self) -> _Task | None:
        """The next task; None after `close`."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._tasks or self._closed)
            self._idle -= 1
            if not self._tasks:
                return None
            task = self._tasks.popleft()
            self._running.add(task.future)
            return task

    def _do(self, task: _Task) -> None:
        try:
            made = task.work(*task.arguments)
        except BaseException as error:
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # given up by `close`
                task.future.set_exception(error)
        else:
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                task.future.set_result(made)
