"""Collectives in the background (SparCML section 7)."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_sparse.transport.communicator import Communicator

NUMBERED = 64  # names that are given to calls that bring none; each is made ready once, see Communicator.in_background

_numbers: weakref.WeakKeyDictionary[Communicator, itertools.count[int]] = weakref.WeakKeyDictionary()
_in_flight: dict[tuple[Communicator, str], Handle] = {}
_lock = threading.Lock()


class Handle:
    """A collective that was started; `start` makes it.

    In eager code it runs in a thread of its own: however many are in flight, none waits for one that another rank has
    started in another order. In a graph it is a part of the graph, which runs when its inputs are there.
    """

    def __init__(self, name: str, run: Callable[[], Any]):
        self.name = name
        self._run = run
        self._result: Any = None
        self._error: BaseException | None = None
        self._done = threading.Event()

    def ready(self) -> bool:
        """Whether `wait` would return, or raise, at once; True in a graph, where nothing waits while it is made."""
        return self._done.is_set()

    def settle(self) -> None:
        """Waits until it is ready, whatever the result."""
        self._done.wait()

    def wait(self) -> Any:
        """What the collective returns, when it is there; may be called again.

        Raises:
            Exception: what the collective has raised.
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
    """Starts a collective and returns at once; any number may be in flight.

    Args:
        collective: one of `hvd_sparse.collectives`.
        slices: what this rank brings.
        communicator: the ranks that take part.
        name: the same on every rank, unique among the collectives in flight, and best the same again in the next step:
            the first call of a name takes longer. The default numbers the calls, from 0 again after 64, so that
            all ranks must then start in the same order; with names of their own the order does not matter.
        arguments: the collective's others.

    Returns:
        A handle; its `wait` gives what the collective returns.

    Raises:
        ValueError: where a collective of that name is in flight.
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
    # A daemon: a process that ends does not wait for ranks that may be gone.
    threading.Thread(target=handle._complete, name=f"hvd_sparse {given}", daemon=True).start()
    return handle


def _numbered(communicator: Communicator) -> str:
    """The next of the names in turn, once whoever had it is done."""
    with _lock:
        number = next(_numbers.setdefault(communicator, itertools.count()))
        name = f"started.{number % NUMBERED}"
        before = _in_flight.get((communicator, name))
    if before is not None:
        before.settle()
    return name
