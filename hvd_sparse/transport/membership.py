"""Elastic jobs, whose ranks come and go: the launcher's driver assigns all places anew at each change.

Horovod would ask the driver itself while it starts again. Here this is done before, so that all ranks know the places
of all, as in any other job, and process sets need not be dynamic: `renew` asks, and Horovod then starts with what the
environment says. Horovod's own listener in each process hears from the driver that hosts were added or removed.

Each process tells the driver every few seconds that it is there (`beat`). The driver ends those that do not, once
others wait for them; who cannot reach the driver raises an error and goes no further.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from horovod.common.elastic import ObjectState as HorovodObjectState
from horovod.common.elastic import State as HorovodState
from horovod.common.elastic import notification_manager
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from hvd_sparse.transport.launcher_store import ELASTIC_VARIABLE, Store, is_elastic

__all__ = [
    "HorovodInternalError",
    "HorovodObjectState",
    "HorovodState",
    "HostsUpdatedInterrupt",
    "JOINING",
    "beat",
    "handled",
    "is_elastic",
    "is_handled",
    "leaving",
    "listening",
    "renew",
    "started_again",
]
_log = logging.getLogger(__name__)
_PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")  # in the order of the driver's answer
_PATIENCE_VARIABLE, _USUAL_PATIENCE = "HOROVOD_ELASTIC_TIMEOUT", "600"  # seconds
_BEATING, _BEAT = "hvd_sparse_beats", 3.0  # seconds
JOINING = 120.0  # seconds that ranks which train wait for one that is new
_handling = 0
_asking = threading.Event()  # set while the driver is asked, when nothing is trained
_leaving = threading.Event()  # set once this process is to end soon
_SHORT_PATIENCE = 15.0  # seconds, of a process that is to end


def renew() -> None:
    """Asks the driver for this process's new place, and writes it to the environment; waits until all have asked.

    Raises:
        SystemExit: with status 0, if this host is no longer part of the job; with 143, if SIGTERM comes meanwhile, or
            came before and there is no place within 15 s.
        OSError: if the driver is gone, or other ranks have not asked within HOROVOD_ELASTIC_TIMEOUT seconds.
    """
    store, beats = Store.of_job("rank_and_size"), Store.of_job("beats")
    assert store is not None and beats is not None  # elastic jobs have a driver, which is the store
    beats.put(_place(), None)  # an error in moments if the driver cannot be reached
    _asking.set()
    patience = float(os.environ.get(_PATIENCE_VARIABLE) or _USUAL_PATIENCE)
    try:
        answer = store.text(_place(), min(patience, _SHORT_PATIENCE) if _leaving.is_set() else patience)
    except OSError:
        if _leaving.is_set():
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        _asking.clear()
    numbers = [int(each) for each in answer.split(",")]
    if numbers[0] < 0:
        _log.info("host %s has left the job; this process ends.", os.environ["HOROVOD_HOSTNAME"])
        raise SystemExit(0)
    os.environ.update({f"HOROVOD_{name}": str(number) for name, number in zip(_PLACE, numbers, strict=True)})


def beat() -> None:
    """Starts a thread that tells the driver, until this process ends, that it is there; once."""
    if not is_elastic() or any(each.name == _BEATING for each in threading.enumerate()):
        return
    store = Store.of_job("beats")
    if store is not None:
        threading.Thread(target=_beat, args=(store,), name=_BEATING, daemon=True).start()


def _beat(store: Store) -> None:
    while True:
        with contextlib.suppress(OSError):  # `renew` says so if it is needed
            store.put(_place(), None, _BEAT)
        time.sleep(_BEAT)


def _place() -> str:
    return f"{os.environ['HOROVOD_HOSTNAME']}:{os.environ['HOROVOD_LOCAL_RANK']}"


@contextlib.contextmanager
def started_again() -> Iterator[None]:
    """Context in which Horovod starts with the place in the environment, and does not ask the driver once more."""
    hidden = os.environ.pop(ELASTIC_VARIABLE, None)
    try:
        yield
    finally:
        if hidden is not None:
            os.environ[ELASTIC_VARIABLE] = hidden


@contextlib.contextmanager
def listening(state: Any) -> Iterator[None]:
    """Context in which the driver's notices reach a state (`on_hosts_updated`)."""
    notification_manager.init()
    notification_manager.register_listener(state)
    try:
        yield
    finally:
        notification_manager.remove_listener(state)


@contextlib.contextmanager
def leaving(state: Any) -> Iterator[None]:
    """Context in which SIGTERM reaches a state (`leave`).

    A script that handles SIGTERM itself goes on doing so. While this process waits for its place, SIGTERM ends it.
    """

    def leave(number: int, frame: Any) -> None:
        _leaving.set()
        if _asking.is_set():
            raise SystemExit(128 + number)
        state.leave()

    handles = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        and hasattr(state, "leave")
    )
    if handles:
        signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        _leaving.clear()
        if handles:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Context in which the loss of a rank is handled by whoever has called, and needs no explanation to the user."""
    global _handling
    _handling += 1
    try:
        yield
    finally:
        _handling -= 1


def is_handled() -> bool:
    """Whether the loss of a rank is handled."""
    return _handling > 0
