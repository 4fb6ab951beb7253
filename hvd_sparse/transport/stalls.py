"""Reports where each rank is, once ranks have waited for each other for a while.

A rank with fewer batches goes on to its next collective, where it waits for the others, which wait for it in theirs. A
thread checks every few seconds whether the main thread has computed since. That costs training nothing, and sends no
message while the main thread makes progress. Only once the main thread has stood still for long is its stack read: only
its own, because `sys._current_frames` reads those of all threads, and Python 3.11 has crashed and deadlocked in it next
to threads that come and go, like those of tf.data.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import logging
import os
import sysconfig
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

from hvd_sparse.transport.launcher_store import Store

_log = logging.getLogger(__name__)
SECONDS_VARIABLE = "HVD_SPARSE_STALL_SECONDS"
USUAL_SECONDS = 10.0
_REMEDY = (
    "All ranks must take part in the same collectives in the same order. If some have fewer batches, give every "
    "rank the same number: dataset.repeat() with steps_per_epoch=int(hvd.allreduce(steps, op=hvd.Min)). "
    f"{SECONDS_VARIABLE} sets the seconds until this warning, 0 for never."
)
_LOOKS = 4  # checks in that time
_IDLE = 0.5  # of a core: a process that takes less does not compute (Horovod's loop takes some)
_STILL = 2e-4  # seconds of computation between two checks below which a thread counts as waiting
_COLLECTIVES = ("allgather", "allreduce", "alltoall", "alltoall_ragged", "broadcast", "exchange", "reducescatter")
_CARRIERS = (
    "horovod.",
    "hvd_sparse.transport.communicator",
    "hvd_sparse.horovod_api.values",
    "hvd_sparse.horovod_api.reduce_scatter",
)
_STEPS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
_NOT_THE_USERS = (os.path.dirname(os.path.dirname(__file__)), *sysconfig.get_paths().values(), "<")

_running: list[threading.Event] = []  # what ends the watch


class Place(NamedTuple):
    """Where a rank waits.

    Attributes:
        doing: what it waits for, the same on all ranks that wait for the same.
        where: the line of the user's code, and the like.
        collective: whether it certainly waits for other ranks, in a collective or as its process computes nothing;
            otherwise that is likely.
    """

    doing: str
    where: str
    collective: bool


def start(rank: int, size: int, scope: str) -> None:
    """Starts a thread that watches this process's main thread until `stop`; does nothing if there is one already.

    Call it from the main thread: another one cannot be watched.

    Args:
        rank: of this process.
        size: the number of ranks.
        scope: of the launcher's store; a new one for each start of Horovod.
    """
    seconds = float(os.environ.get(SECONDS_VARIABLE) or USUAL_SECONDS)
    if _running or size == 1 or seconds <= 0 or threading.current_thread() is not threading.main_thread():
        return
    ended = threading.Event()
    _running.append(ended)
    watch = _Watch(rank, size, Store.of_job(scope), seconds, ended, WatchedThread())
    threading.Thread(target=watch.run, name="hvd_sparse_stalls", daemon=True).start()


def stop() -> None:
    """Ends the watch; does nothing if there is none."""
    while _running:
        _running.pop().set()


def place_of(frame: FrameType | None) -> Place | None:
    """What the thread with this innermost frame waits for; None if it computes in Python, or has joined."""
    frames = list(_outwards(frame))
    if not frames or not _is_inside(frames[0], ("tensorflow.", "keras.", "horovod.")) and not _is_generated(frames[0]):
        return None
    if any(
        each.f_code.co_name == "join" and _is_inside(each, ("horovod.", "hvd_sparse.transport.joining"))
        for each in frames
    ):
        return None
    collective = next((each for each in reversed(frames) if _is_collective(each)), None)
    where = ", ".join(text for text in (_progress(frames), _users_line(frames)) if text)
    if collective is not None:
        name = collective.f_locals.get("name")
        doing = f"the collective {name}" if name else f"hvd.{collective.f_code.co_name}"
        return Place(doing, ", ".join(text for text in (_callback(frames), where) if text), True)
    step = next((each.f_code.co_name for each in frames if _is_step(each)), None)
    return Place(f"a step of {step}" if step else "a tf.function or an operation of TensorFlow", where, False)


class WatchedThread:
    """The thread that makes this object, to be observed by another thread."""

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        # With prototypes of our own: those of ctypes.pythonapi are shared by everybody.
        self._state = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))()
        self._read = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(("PyThreadState_GetFrame", ctypes.pythonapi))

    def computed(self) -> float:
        """Seconds of computation so far."""
        return time.clock_gettime(self._clock)

    def frame(self) -> FrameType | None:
        """Its innermost frame, to be read while the thread waits; None if it is not in Python."""
        try:
            return self._read(self._state)
        except ValueError:  # NULL
            return None


class _Watch:
    """Follows each call of the main thread as long as it lasts; reports one that lasts long."""

    def __init__(
        self,
        rank: int,
        size: int,
        store: Store | None,
        seconds: float,
        ended: threading.Event,
        watched: WatchedThread,
    ):
        self._rank, self._size, self._store, self._seconds, self._ended = rank, size, store, seconds, ended
        self._watched = watched
        self._told = ""

    def run(self) -> None:
        pause = self._seconds / _LOOKS
        while not self._ended.wait(pause):
            computed, since, taken = self._watched.computed(), time.monotonic(), time.process_time()
            while not self._ended.wait(pause) and self._watched.computed() - computed < _STILL:
                waited = time.monotonic() - since
                if waited > self._seconds:
                    place = place_of(self._watched.frame())
                    if place is not None and time.process_time() - taken < _IDLE * waited:
                        place = place._replace(collective=True)
                    with contextlib.suppress(OSError):  # the launcher has ended
                        self._tell(place, waited)
            self._get_on()

    def _tell(self, place: Place | None, waited: float) -> None:
        if place is None:
            return
        if self._store is None:
            if place.collective:
                self._report({self._rank: place})
            return
        self._store.put(self._rank, place)
        self._told = self._told or " "
        if any(self._said(rank) for rank in range(self._rank)):
            return  # the first rank that waits reports for all
        others = {rank: self._said(rank) for rank in range(self._rank + 1, self._size)}
        places = {self._rank: place, **others}
        if _is_stall(places, certain=waited > 2 * self._seconds):
            self._report(places)

    def _said(self, rank: int) -> Place | None:
        """Where another rank waits, according to itself."""
        assert self._store is not None
        said = self._store.ask(rank)
        return said and Place(*said)

    def _report(self, places: dict[int, Place | None]) -> None:
        text = f"ranks have been waiting for more than {self._seconds:g} s.\n{_listed(places)}\n{_REMEDY}"
        if text != self._told:
            _log.warning(text)
        self._told = text

    def _get_on(self) -> None:
        """Notes that the call has ended."""
        if self._told and self._store is not None:
            with contextlib.suppress(OSError):
                self._store.put(self._rank, None)
        self._told = ""


def _is_stall(places: dict[int, Place | None], certain: bool) -> bool:
    """Whether ranks wait in different places, or some do not wait at all and do not arrive either."""
    waiting = [place for place in places.values() if place is not None]
    if len(waiting) < len(places):
        return certain and any(place.collective for place in waiting)
    return len({place.doing for place in waiting}) > 1


def _listed(places: dict[int, Place | None]) -> str:
    """A line for each place, with the ranks that are there."""
    ranks: dict[str, list[int]] = {}
    for rank, place in places.items():
        text = "does not wait for others" if place is None else f"waits in {place.doing} ({place.where})"
        ranks.setdefault(text, []).append(rank)
    return "\n".join(f"  rank {', '.join(map(str, numbers))} {text}" for text, numbers in ranks.items())


def users_line(error: BaseException) -> str:
    """The innermost line of the user's code through which an error has come, or that calls the caller; "" if none."""
    raised = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return _users_line([*reversed(raised), *_outwards(inspect.currentframe())])


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_inside(frame: FrameType, modules: Sequence[str]) -> bool:
    return f"{frame.f_globals.get('__name__', '')}.".startswith(tuple(modules))


def _is_generated(frame: FrameType) -> bool:
    """Whether it is one of the functions that TensorFlow generates for a library's operations, such as Horovod's."""
    return frame.f_code.co_filename == "<string>"


def _is_collective(frame: FrameType) -> bool:
    return frame.f_code.co_name in _COLLECTIVES and _is_inside(frame, _CARRIERS)


def _is_step(frame: FrameType) -> bool:
    return frame.f_code.co_name in _STEPS and _is_inside(frame, ("keras.",))


def _callback(frames: Sequence[FrameType]) -> str:
    """The Keras callback that waits; "" if none does."""
    for frame in frames:
        if frame.f_code.co_name.startswith("on_") and "self" in frame.f_locals:
            return f"{type(frame.f_locals['self']).__name__}.{frame.f_code.co_name}"
    return ""


def _progress(frames: Sequence[FrameType]) -> str:
    """How far Keras's fit has progressed, as far as can be seen."""
    for frame in frames:
        if _is_step(frame):
            seen: dict[str, Any] = {key: frame.f_locals.get(key) for key in ("epoch", "begin_step")}
            numbers = zip(("epoch", "batch"), seen.values(), strict=True)
            return ", ".join(f"{kind} {number + 1}" for kind, number in numbers if isinstance(number, int))
    return ""


def _users_line(frames: Sequence[FrameType]) -> str:
    """The innermost line that is not in a library."""
    for frame in frames:
        path = frame.f_code.co_filename
        if not path.startswith(_NOT_THE_USERS):
            return f"{os.path.basename(path)} line {frame.f_lineno}"
    return ""
