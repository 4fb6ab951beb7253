"""Changes of the ranks of a real job: how they are brought about, and what the ranks' events say of them."""

from __future__ import annotations

import itertools
import pathlib
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.machines import loopback_job
from benchmarks.machines.local_ranks import ONE_THREAD
from benchmarks.machines.loopback_job import LoopbackJob

DEATH, REMOVAL, NOTICE, STANDSTILL, JOIN = "death", "removal", "notice", "standstill", "join"
LEAVING = (DEATH, REMOVAL, NOTICE, STANDSTILL)
TOLD = {
    DEATH: "a rank gets SIGKILL",
    REMOVAL: "a host is taken out of the discovery",
    NOTICE: "the ranks of a host get SIGTERM",
    STANDSTILL: "a rank gets SIGSTOP",
    JOIN: "a host is added",
}
STILL = 10  # seconds that ranks wait for one that stands still; 30 by default
SETTLED = 10  # steps after a change, before the next one
_LIMITS = {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(STILL), "HOROVOD_ELASTIC_BEAT_TIMEOUT": str(STILL)}
_END = 120.0  # seconds for a job to end
Events = Sequence[Mapping[str, Any]]


class Change(NamedTuple):
    """What a change cost the rank that was there before, in seconds.

    Attributes:
        kind: one of LEAVING, or JOIN.
        at: when it was brought about, by the clock.
        again: until it has made its first step with the ranks that there are then.
        noticed: until the launcher's notice came; None if there was none.
        called: until the decorated function was called.
        retrace: what the first step, from that call on, took longer than a usual one.
        imported: from when the last new process had imported everything until `again`; None if none has come.
        paused: its longest time without a step.
    """

    kind: str
    at: float
    again: float
    noticed: float | None
    called: float
    retrace: float
    imported: float | None
    paused: float


class Cluster:
    """The hosts of a job, of which the first one stays; a host that comes has an address that was not used before.

    A death blacklists a host, for ever or for --blacklist-cooldown-range; with new addresses a host can come at any
    time.
    """

    def __init__(self, job: LoopbackJob, hosts: Sequence[str], slots: int, fresh: Iterator[str]):
        self.job, self._hosts, self._slots, self._fresh = job, list(hosts), slots, fresh

    @property
    def ranks(self) -> int:
        """The number of ranks that there are to be."""
        return len(self._hosts) * self._slots

    @property
    def host(self) -> str:
        """The host that stays."""
        return self._hosts[0]

    def bring_about(self, kind: str) -> Change:
        """Changes the ranks, waits until the new ones train steadily, and returns what it cost."""
        at = self._add() if kind == JOIN else self._take(kind)
        self.settle(at)
        return change_of(self.job.events(), kind, at, self.ranks, self.host)

    def settle(self, since: float) -> None:
        """Waits until all ranks have made some steps together since a time."""

        def done() -> bool:
            made = steps(self.job.events(), since, self.ranks)
            return len(made) == self.ranks and min(len(each) for each in made.values()) > SETTLED

        self.job.wait_for(done)

    def _add(self) -> float:
        self._hosts.append(next(self._fresh))
        return self._announce()

    def _take(self, kind: str) -> float:
        host = self._hosts.pop()
        if kind == REMOVAL:
            return self._announce()
        if kind == NOTICE:
            return min(self.job.signal(host, signal.SIGTERM, slot) for slot in range(self._slots))
        return self.job.signal(host, signal.SIGKILL if kind == DEATH else signal.SIGSTOP)

    def _announce(self) -> float:
        now = time.time()
        self.job.set_hosts(dict.fromkeys(self._hosts, self._slots))
        return now


@contextmanager
def training(slots: int, hosts: int, words: Sequence[str]) -> Iterator[Cluster]:
    """Context with a job of `training_rank` that has settled, and that has to end in order.

    Args:
        slots: ranks on each host.
        hosts: their number.
        words: options of `training_rank`.
    """
    addresses = (f"127.0.{number // 250 + 1}.{number % 250 + 2}" for number in itertools.count())
    first = list(itertools.islice(addresses, hosts))
    module, environment = "benchmarks.elastic.training_rank", {**ONE_THREAD, **_LIMITS}
    with tempfile.TemporaryDirectory(prefix="elastic_") as name:
        folder = pathlib.Path(name)
        placed = dict.fromkeys(first, slots)
        with loopback_job.running(folder, module, placed, 1, words, environment) as job:
            cluster = Cluster(job, first, slots, addresses)
            cluster.settle(0)
            yield cluster
            (folder / "finish").touch()
            status = job.wait(_END)
            require_in_order(job.events(), cluster.ranks, status)


def require_in_order(events: Events, ranks: int, status: int) -> None:
    """Checks that a job has ended well: equal replicas, and all steps done.

    Raises:
        ValueError: if not.
    """
    ends = [each for each in events if each["event"] == "trained"]
    if status != 0 or len(ends) != ranks:
        raise ValueError(f"Expected {ranks} ranks at the end and status 0, got {len(ends)} and status {status}.")
    if len({(each["weights"], each["steps"]) for each in ends}) > 1:
        raise ValueError("Expected ranks with the same weights after the same number of steps; they differ.")
    made = {each["batch"] for each in events if each["event"] == "step"}
    if made != set(range(1, ends[0]["steps"] + 1)):
        raise ValueError(f"Expected that all of {ends[0]['steps']} steps were made, got {len(made)}.")


def steps(events: Events, since: float, size: int) -> dict[int, list[float]]:
    """The times of the steps of each process, after a time and with so many ranks."""
    found: dict[int, list[float]] = {}
    for each in events:
        if each["event"] == "step" and each["size"] == size and each["time"] > since:
            found.setdefault(each["pid"], []).append(each["time"])
    return found


def change_of(events: Events, kind: str, at: float, size: int, host: str) -> Change:
    """What a change cost.

    Args:
        events: of all ranks, in order.
        kind: of the change.
        at: when it was brought about.
        size: the number of ranks after it.
        host: one that was there before and stays; its first process is asked.
    """
    pid = next(each["pid"] for each in events if each["host"] == host)
    own = [each for each in events if each["pid"] == pid]
    after = steps(own, at, size)[pid]
    again = after[0]
    called = _times(own, "trains", at, again)[-1]
    usual = statistics.median(gaps(after))
    every = [each["time"] for each in own if each["event"] == "step" and each["time"] <= again]
    noticed = _times(events, "noticed", at, again) if kind in (REMOVAL, JOIN) else []
    imported = _times(events, "imported", at, again)
    return Change(
        kind=kind,
        at=at,
        again=again - at,
        noticed=noticed[0] - at if noticed else None,
        called=called - at,
        retrace=again - called - usual,
        imported=again - imported[-1] if imported else None,
        paused=max(gap for gap, end in zip(gaps(every), every[1:], strict=True) if end > at),
    )


def gaps(times: Sequence[float]) -> list[float]:
    """The differences of neighbours."""
    return [later - sooner for sooner, later in itertools.pairwise(times)]


def _times(events: Events, kind: str, since: float, until: float) -> list[float]:
    return [each["time"] for each in events if each["event"] == kind and since < each["time"] < until]
