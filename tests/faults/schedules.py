"""Schedules of faults over real elastic jobs, drawn by a seed: `make faults`.

    python -m tests.faults.schedules --seed 1 --count 30

Hosts leave and join, ranks die, stand still and are told to end, one after the other or while the last change is dealt
with. After each schedule the sums must hold (`ledger.py`), all ranks be equal, no step have taken longer than a minute
to come, and nothing be left behind. One that fails is printed as the command that repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
from typing import NamedTuple

import psutil

from benchmarks.machines.loopback_job import LoopbackJob
from tests.faults import ledger
from tests.parallel.launch import QUIET

HANG = 60.0  # seconds without a step that count as a hang, on top of the time limits that are set below
LIMITS = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "8", "HOROVOD_ELASTIC_BEAT_TIMEOUT": "8"}
START = 240.0  # seconds for new processes to start on a busy machine
KINDS = ("kill", "stop", "term", "leave", "join")
RECIPES = ("dense", "hitopk", "recommended")
MOST, LEAST = 4, 2  # ranks


class Fault(NamedTuple):
    """What happens, some steps after all ranks of the last change have trained.

    Attributes:
        kind: one of KINDS.
        host: where.
        slot: which rank of the host, for those that concern one rank.
        after: the number of steps before it.
        overlaps: whether it comes at once, while the change before it is dealt with.
    """

    kind: str
    host: str
    slot: int
    after: int
    overlaps: bool


class Schedule(NamedTuple):
    """A job and what happens to it.

    Attributes:
        recipe: one of RECIPES.
        slots: ranks on each host.
        hosts: at the beginning.
        faults: in order.
    """

    recipe: str
    slots: int
    hosts: list[str]
    faults: list[Fault]

    def __str__(self) -> str:
        told = ", ".join(
            f"{each.kind} {each.host}" + (" at once" if each.overlaps else f" after {each.after} steps")
            for each in self.faults
        )
        return f"{self.recipe}, {len(self.hosts)} hosts of {self.slots}: {told}"


def drawn(seed: int) -> Schedule:
    """The schedule of a seed; at each time two to four ranks train, and one host stays throughout."""
    chosen = random.Random(seed)
    recipe, slots = RECIPES[seed % len(RECIPES)], chosen.choice([1, 1, 2])
    hosts = [f"127.0.0.{number + 2}" for number in range(chosen.randint(2 if slots == 1 else 1, MOST // slots))]
    alive, new, faults = list(hosts), len(hosts) + 2, []
    for number in range(chosen.randint(1, 3)):
        ranks = len(alive) * slots
        kinds = [kind for kind in KINDS if (ranks + slots <= MOST if kind == "join" else ranks - slots >= LEAST)]
        kind = chosen.choice(kinds)
        if kind == "join":
            host, new = f"127.0.0.{new}", new + 1
            alive.append(host)
        else:
            host = chosen.choice(alive[1:])
            alive.remove(host)
        faults.append(
            Fault(kind, host, chosen.randrange(slots), chosen.randint(0, 8), number > 0 and chosen.random() < 0.3)
        )
    return Schedule(recipe, slots, hosts, faults)


def run(schedule: Schedule, folder: pathlib.Path) -> float:
    """Runs a schedule, and checks what must hold; returns the longest time without a step, in seconds.

    Raises:
        AssertionError: if something does not hold; the folder keeps what the ranks have written.
    """
    before = set(os.listdir("/dev/shm"))
    job = LoopbackJob(folder, "tests.faults.elastic_ledger")
    try:
        hosts = {host: schedule.slots for host in schedule.hosts}
        job.start(hosts, LEAST, ["--recipe", schedule.recipe], {**QUIET, **LIMITS})
        _wait(job, hosts, 3, time.time() - HANG)
        for fault in schedule.faults:
            since = time.time()
            if not fault.overlaps:
                _wait(job, hosts, fault.after, since)
            _strike(job, hosts, fault)
        _wait(job, hosts, 4, time.time())
        (folder / "finish").touch()
        assert job.wait(HANG) == 0, job.output()
        events = job.events()
        ledger.check(events)
        assert len([each for each in events if each["event"] == "trained"]) == sum(hosts.values())
    finally:
        job.stop()
    _require_nothing_left(folder, before)
    return max(_pauses(events), default=0.0)


def _strike(job: LoopbackJob, hosts: dict[str, int], fault: Fault) -> None:
    signals = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
    if fault.kind in signals:
        slots = range(hosts[fault.host]) if fault.kind == "term" else [fault.slot]
        for slot in slots:
            job.wait_for((job.folder / f"events.{fault.host}.{slot}").exists)  # it may have been told to join only now
            job.signal(fault.host, signals[fault.kind], slot)
    if fault.kind == "join":
        hosts[fault.host] = hosts[next(iter(hosts))]
    else:
        del hosts[fault.host]
    if fault.kind in ("join", "leave"):
        job.set_hosts(hosts)


def _wait(job: LoopbackJob, hosts: dict[str, int], steps: int, since: float) -> None:
    """Waits until the ranks of these hosts have made so many steps together since then."""
    ranks = sum(hosts.values())

    def done() -> bool:
        made = [each for each in job.events("step") if each["time"] > since and each["size"] == ranks]
        first = {each["pid"]: 0 for each in made}
        for each in made:
            first[each["pid"]] += 1
        return len(first) >= ranks and min(first.values()) >= steps

    job.wait_for(done, START)


def _pauses(events: list[dict]) -> list[float]:
    """The times between steps of a rank that stays."""
    times = sorted(each["time"] for each in events if each["event"] == "step")
    return [later - sooner for sooner, later in zip(times, times[1:], strict=False)]


def _require_nothing_left(folder: pathlib.Path, before: set[str]) -> None:
    deadline = time.monotonic() + 10
    while left := [
        each.pid for each in psutil.process_iter(["cmdline"]) if str(folder) in (each.info["cmdline"] or [])
    ]:
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.1)
    files = [name for name in set(os.listdir("/dev/shm")) - before if "hvd_sparse" in name]
    assert not files, f"/dev/shm has {files}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.schedules", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--count", type=int, default=30, help="the number of schedules (default: 30)")
    parser.add_argument("--store", type=pathlib.Path, help="file of results; seeds that it has are not run again")
    options = parser.parse_args()
    store = options.store
    known = {json.loads(line)["seed"] for line in store.read_text().splitlines()} if store and store.exists() else set()
    failed = 0
    for seed in range(options.seed, options.seed + options.count):
        if seed in known:
            continue
        schedule, folder, begun = drawn(seed), pathlib.Path(tempfile.mkdtemp(prefix="faults_")), time.time()
        try:
            pause, problem = run(schedule, folder), ""
            shutil.rmtree(folder)
        except Exception as error:
            pause, problem, failed = -1.0, f"{type(error).__name__}: {str(error)[-3000:]}", failed + 1
        seconds = time.time() - begun
        told = f"held in {seconds:.0f} s, {pause:.1f} s without a step" if not problem else f"FAILED, see {folder}"
        print(f"{seed}: {schedule}: {told}", flush=True)
        if problem:
            print(f"{problem}\nRepeat it: python -m tests.faults.schedules --seed {seed} --count 1", flush=True)
        if store:
            with open(store, "a") as file:
                file.write(
                    json.dumps({"seed": seed, "schedule": str(schedule), "problem": problem, "pause": pause}) + "\n"
                )
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
