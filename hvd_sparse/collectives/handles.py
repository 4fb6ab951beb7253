"""Collectives in the background (SparCML section 7)."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_sparse.transport.communicator import Communicator

NUMBERED = 64  # default names for calls without one; each is prepared once, see Communicator.in_background

_numbers: weakref.WeakKeyDictionary[Communicator, itertools.count[int]] = weakref.WeakKeyDictionary()
_in_flight: dict[tuple[Communicator, str], Handle] = {}
_lock = threading.Lock()


class Handle:
    """A collective in the background, as returned by `start`.

    In eager code it runs in its own thread, so any number may be in flight and ranks may start them in different
    orders. In a graph it is a part of the graph, which runs when its inputs are available.
    """

    def __init__(self, name: str, run: Callable[[], Any]):
        self.name = name
        self._run = run
        self._result: Any = None
        self._error: BaseException | None = None
        self._done = threading.Event()

    def ready(self) -> bool:
        """Whether `wait` would return, or raise, immediately; always True in a graph."""
        return self._done.is_set()

    def settle(self) -> None:
        """Waits until the collective has returned or raised."""
        self._done.wait()

    def wait(self) -> Any:
        """Waits for the collective and returns its result; may be called again.

        Raises:
            Exception: whatever the collective raised.
        """
        self.settle()
        if self._error is not None:
            raise self._error
        return self._result

    def _complete(self) -> None:
        try:
            self._result = self._run()
        except BaseException as error:
            self._error = error
        self._done.set()


def start(
    collective: Callable[..., Any],
    slices: tf.IndexedSlices,
    communicator: Communicator,
    name: str | None = None,
    **arguments: Any,
) -> Handle:
    """Starts a collective and returns immediately; any number may be in flight.

    Args:
        collective: one of `hvd_sparse.collectives`.
        slices: this rank's contribution.
        communicator: the ranks that take part.
        name: the same on every rank and unique among the collectives in flight. Use the same name in every step: the
            first call of a name takes longer. The default numbers the calls modulo 64, so all ranks must then start
            them in the same order; with explicit names the order does not matter.
        arguments: further arguments of the collective.

    Returns:
        A handle whose `wait` returns what the collective returns.

    Raises:
        ValueError: if a collective of that name is in flight.
    """
    given = name if name is not None else _numbered(communicator)
    if not tf.executing_eagerly():
        handle = Handle(given, lambda: collective(slices, communicator, name=given, **arguments))
        handle._complete()
        return handle
    key = (communicator, given)

    def run() -> Any:
        try:
            return collective(slices, communicator.in_background(), name=given, **arguments)
        finally:
            with _lock:
                _in_flight.pop(key)

    handle = Handle(given, run)
    with _lock:
        if key in _in_flight:
            raise ValueError(f"Expected a name that is not in flight, got {given!r} again: wait for its handle first.")
        _in_flight[key] = handle
    # A daemon thread, so that a process can exit without waiting for ranks that may be gone.
    threading.Thread(target=handle._complete, name=f"hvd_sparse {given}", daemon=True).start()
    return handle


def _numbered(communicator: Communicator) -> str:
    """The next default name, after waiting for the last call that used it."""
    with _lock:
        number = next(_numbers.setdefault(communicator, itertools.count()))
        name = f"started.{number % NUMBERED}"
        before = _in_flight.get((communicator, name))
    if before is not None:
        before.settle()
    return name
