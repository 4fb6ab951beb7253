"""Names the ranks that are lost, once a collective has failed because of them.

Horovod says only that something has ended. Here each rank answers in the launcher's store: that it has noticed the
failure too, or with what it has ended, and which processes of its host are gone or stand still. Who has not answered
after a few seconds counts as lost. As long as no collective fails and no rank ends, nothing is sent.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_sparse.transport import background_loop, membership
from hvd_sparse.transport.launcher_store import Store
from hvd_sparse.transport.processes import GONE, RUNS, STOPPED, Process
from hvd_sparse.transport.stalls import users_line
from link import PartnerLostError

_log = logging.getLogger(__name__)
PATIENCE = 8.0  # seconds to wait for the answers of the other ranks
_POLL = 0.2
_ANSWER = 3.0  # seconds to wait for the launcher, which may be cut off, too
_LOOK = 0.5  # seconds between two looks at Horovod's loop
_LONGEST = 300  # characters of another rank's error
HERE, RAISED, EXITED, SILENT = "here", "raised", "exited", "silent"
_RELATED = re.compile(
    r"Horovod has been shut down|Horovod has ended on this rank|Connection (closed|reset) by peer|Broken pipe"
    r"|Timed out waiting \d+ms|local rank \d+ (has (ended|left)|stands still)|this rank has left"
)
_REMOVED = "Process set provided does not exist"  # said by Horovod of sets that ended with its loop, and of wrong ones
_COLLECTIVE = re.compile(r"The exchange (\S+) in shared memory|\[\[\{\{node (?:[^}]*/)?([^}/]+)\}\}\]\]")
# What the others are told about a rank, the likeliest cause first, and what to do about it.
_WHAT = {
    RAISED: ("has ended with {error}", "Look at the output of rank {rank}"),
    GONE: (
        "is gone: its process was killed, or ended without a word",
        "Look at the output of rank {rank}, and for the out-of-memory killer on its host (dmesg)",
    ),
    STOPPED: (
        "stands still: its process was stopped, or is held by a debugger",
        "Look for what has stopped the process of rank {rank}",
    ),
    SILENT: (
        "does not answer: its host is down or cut off, or its process stands still",
        "Look whether the host of rank {rank} can be reached",
    ),
    RUNS: ("does not answer, though its process runs: it waits for something else", "Look at what rank {rank} does"),
    EXITED: (
        "has ended without an error, or has shut down Horovod, and takes part in nothing more",
        "Give all ranks the same number of steps, or look why rank {rank} has ended",
    ),
}


class RankLostError(PartnerLostError, RuntimeError):
    """A rank is gone, stands still or cannot be reached, so that collectives fail on all others."""


class Place(NamedTuple):
    """Where a rank runs.

    Attributes:
        host: the name of its host.
        process: its process.
    """

    host: str
    process: Process


class Fate(NamedTuple):
    """What is known about a rank after a failure.

    Attributes:
        kind: HERE, RAISED, EXITED, GONE, STOPPED, RUNS or SILENT.
        error: with which it has ended, if RAISED.
    """

    kind: str
    error: str = ""


class RollCall:
    """The answers of all ranks after a failure.

    Args:
        rank: this rank.
        places: those of all ranks.
        store: a scope of the launcher's store; None if there is none: then only this host's processes are seen.
    """

    def __init__(self, rank: int, places: Sequence[Place], store: Store | None):
        self._rank, self._places, self._store = rank, places, store
        self._fate: Fate | None = None
        self._lock = threading.Lock()

    def answer(self, fate: Fate) -> None:
        """Tells the others this rank's fate, and what it sees; the first fate counts, as who raises then exits."""
        with self._lock:
            self._fate = self._fate or fate
            if self._store is not None:
                with contextlib.suppress(OSError):  # the launcher has ended, or is cut off
                    self._store.put(self._rank, {"fate": self._fate, "seen": self._seen()}, _ANSWER)

    def fates(self, patience: float = PATIENCE) -> dict[int, Fate]:
        """The fate of each other rank; waits until all are known, but no longer than `patience` seconds."""
        deadline = time.monotonic() + patience
        others = [rank for rank in range(len(self._places)) if rank != self._rank]
        while True:
            self.answer(Fate(HERE))
            said = {rank: told for rank in others if (told := self._said(rank))}
            known = _merged(said, [self._seen(), *(told["seen"] for told in said.values())])
            late = [rank for rank in others if known.get(rank, Fate(RUNS)).kind == RUNS]
            if not late or time.monotonic() > deadline:
                return {rank: known.get(rank, Fate(SILENT)) for rank in others}
            time.sleep(_POLL)

    def told(self, noticed: str) -> str:
        """What has happened, for a user.

        Args:
            noticed: where this rank has noticed it.
        """
        fates = self.fates()
        lost = {rank: fate for rank, fate in fates.items() if fate.kind != HERE}
        if any(fate.kind != RUNS for fate in lost.values()):  # those that run wait for the others, as this rank did
            lost = {rank: fate for rank, fate in lost.items() if fate.kind != RUNS}
        if not lost:
            return (
                "The connection between ranks broke, or nothing came for as long as HOROVOD_GLOO_TIMEOUT_SECONDS "
                f"allows (30 by default), and all ranks are still there. Rank {self._rank} noticed it {noticed}. Look "
                "for what interrupts the network; then start the job again from its last checkpoint."
            )
        sentences = ". ".join(self._sentence(ranks, fate) for fate, ranks in _grouped(lost).items())
        cause = min(lost, key=lambda rank: (list(_WHAT).index(lost[rank].kind), rank))
        remedy = _WHAT[lost[cause].kind][1].format(rank=cause)
        return (
            f"{sentences}. Rank {self._rank} noticed it {noticed}. {remedy}; then start the job again from its last "
            "checkpoint."
        )

    def _sentence(self, ranks: Sequence[int], fate: Fate) -> str:
        hosts = sorted({self._places[rank].host for rank in ranks})
        who = f"Rank {ranks[0]}" if len(ranks) == 1 else f"Each of the ranks {', '.join(map(str, ranks))}"
        where = "on host " + hosts[0] if len(hosts) == 1 else "on hosts " + ", ".join(hosts)
        return f"{who} {where} {_WHAT[fate.kind][0].format(error=fate.error)}"

    def _said(self, rank: int) -> dict[str, Any] | None:
        if self._store is None:
            return None
        try:
            return self._store.ask(rank, _ANSWER)
        except OSError:  # the launcher has ended, or is cut off
            return None

    def _seen(self) -> dict[str, str]:
        """The states of the other ranks' processes, of those that can be seen from here."""
        others = {rank: place.process for rank, place in enumerate(self._places) if rank != self._rank}
        states = {str(rank): process.state() for rank, process in others.items()}
        return {rank: state for rank, state in states.items() if state is not None}


def _merged(said: Mapping[int, dict[str, Any]], seen: Iterable[Mapping[str, str]]) -> dict[int, Fate]:
    """The fates of the ranks: by their own word, else by what others see of their processes."""
    fates: dict[int, Fate] = {}
    for states in seen:
        for rank, state in states.items():
            if state != RUNS or int(rank) not in fates:  # one that runs may have ended since
                fates[int(rank)] = Fate(state)
    return fates | {rank: Fate(*each["fate"]) for rank, each in said.items()}


def _grouped(fates: Mapping[int, Fate]) -> dict[Fate, list[int]]:
    grouped: dict[Fate, list[int]] = {}
    for rank, fate in sorted(fates.items()):
        grouped.setdefault(fate, []).append(rank)
    return grouped


_roll: RollCall | None = None
_stopped = threading.Event()
_hooked: list[Callable[..., Any]] = []  # the hook for uncaught errors that was there before


def start(rank: int, places: Sequence[Place], scope: str) -> None:
    """Makes this rank answer once Horovod's loop ends, or an error ends its script; does nothing for one rank.

    Args:
        rank: this rank.
        places: those of all ranks.
        scope: of the launcher's store; a new one for each start of Horovod.
    """
    global _roll, _stopped
    _stopped.set()  # the watch of an earlier call
    if len(places) == 1:
        return
    _roll, _stopped = RollCall(rank, places, Store.of_job(scope)), threading.Event()
    if background_loop.ended_function() is not None:
        threading.Thread(target=_watch, args=(_roll, _stopped), name="hvd_sparse_lost", daemon=True).start()
    if not _hooked:
        _hooked.append(sys.excepthook)
        sys.excepthook = _ended_by
        atexit.register(_exited)


def stop() -> None:
    """Tells the others that this rank leaves, and ends what `start` has started."""
    global _roll
    _stopped.set()
    _exited()
    _roll = None


def explain(error: BaseException, step: int | None = None) -> str | None:
    """What has happened to which rank, if an error tells that a collective has failed because of one; else None.

    Args:
        error: any.
        step: the step of training in which it was raised, if known.
    """
    if _roll is None or not is_related(error):
        return None
    found = _COLLECTIVE.search(str(error))
    noticed = [
        f"at {time.strftime('%H:%M:%S')}",
        f"in step {step}" if step is not None else "",
        f"in the collective {found[1] or found[2]}" if found else "",
        users_line(error),
    ]
    return _roll.told(", ".join(part for part in noticed if part))


def is_related(error: BaseException) -> bool:
    """Whether an error tells that a collective has failed because of a rank."""
    text = str(error)
    found = bool(_RELATED.search(text)) or _REMOVED in text and background_loop.has_ended()
    return found and isinstance(error, tf.errors.OpError)


@contextlib.contextmanager
def explained(step: Callable[[], int]) -> Iterator[None]:
    """Context in which errors of collectives become a `RankLostError` that names the rank.

    Args:
        step: returns the number of the current step.
    """
    try:
        yield
    except tf.errors.OpError as error:
        told = None if membership.is_handled() else explain(error, step())
        if told is None:
            raise
        raise RankLostError(told) from None


def _watch(roll: RollCall, stopped: threading.Event) -> None:
    while not stopped.wait(_LOOK):
        if background_loop.has_ended():
            roll.answer(Fate(HERE))
            return


def _ended_by(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Tells the other ranks of an error that nobody has caught, or says whose loss has caused it."""
    told = explain(error)
    if _roll is not None and told is None and not isinstance(error, RankLostError):
        text = f"{kind.__name__}: {error}"
        _roll.answer(Fate(RAISED, text if len(text) < _LONGEST else f"{text[:_LONGEST]}..."))
    _hooked[0](kind, error, trace)
    if told is not None:
        _log.error(told)


def _exited() -> None:
    if _roll is not None and not background_loop.has_ended():
        _roll.answer(Fate(EXITED))
