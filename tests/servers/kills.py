"""Kills and stops ranks of small jobs on servers at random, and checks what happens to the others.

    python -m tests.servers.kills --rounds 200 --seed 1

Ranks are processes connected by sockets. In each round one of them is killed (SIGKILL), and half of the time another
process replaces it; or it is stopped (SIGSTOP) and resumed after a while, which may be longer than a lease. Gradients
are ones and the optimizer is gradient descent with a rate of 1, so the parameters count the applied pushes: none may
count twice, and of the living ranks' pushes no more may be missing than replicas allow, and only if the server is
gone.

A lease is one second, so a rank that gets no processor for two seconds counts as gone. On a machine with many more busy
threads than cores that happens again and again, and ranks take over from each other instead of taking steps. So every
rank measures how late its threads wake up; the time limit of a round is extended by that, and it is printed.
"""

from __future__ import annotations

import argparse
import enum
import faulthandler
import multiprocessing
import os
import queue
import random
import secrets
import signal
import threading
import time
from typing import Any, NamedTuple

import keras
import numpy as np

from hvd_sparse.servers.applying import ServedPieces
from hvd_sparse.servers.joining import serve
from hvd_sparse.servers.member import Guest, start
from hvd_sparse.servers.pushing import cut
from hvd_sparse.servers.replicas import Replicas
from hvd_sparse.servers.returning import come_back
from hvd_sparse.servers.rules import InOrderOfArrival
from hvd_sparse.servers.settings import Settings
from hvd_sparse.transport.meeting import Meeting, Ticket
from tests.datacache.node import free_addresses
from tests.servers import members as job
from tests.servers.simulated import variables, whole_of

RANKS, STEPS, PAUSE = 3, 60, 0.02
LIMIT = 60.0  # seconds per round, much longer than a lease, a silence and all steps together
TICK, LATE = 0.1, 0.5  # seconds: how often a rank looks how late its threads wake up, and what it counts
INSURED = Settings(None, None, InOrderOfArrival(max_staleness=8), None, Replicas(age=6, lease=1.0))


class Deed(enum.Enum):
    """What happens to a rank."""

    KILL = "killed"
    REPLACE = "killed, and comes back"
    STOP = "stopped"


class Told(NamedTuple):
    """The report of a process at its end; its place is its rank, or RANKS for a replacement."""

    place: int
    parameters: np.ndarray
    updates_lost: int
    places: list[int]


class Board(NamedTuple):
    """What the processes of a round share.

    Attributes:
        begun: the number of steps that each has begun, by place.
        late: seconds by which the threads of each woke up too late.
        told: the queue of reports.
    """

    begun: Any
    late: Any
    told: Any

    @classmethod
    def of(cls, places: int) -> Board:
        """An empty one."""
        fork = multiprocessing.get_context("fork")
        return cls(fork.Array("i", places, lock=False), fork.Array("d", places, lock=False), fork.Queue())

    def watch(self, place: int) -> None:
        """Measures, for the rest of this process, how late its threads wake up."""

        def watch() -> None:
            slept = time.monotonic()
            while True:
                time.sleep(TICK)
                slept, before = time.monotonic(), slept
                if slept - before > TICK + LATE:
                    self.late[place] += slept - before - TICK

        threading.Thread(target=watch, daemon=True).start()

    def reports(self, number: int) -> list[Any]:
        """Waits for this many reports."""
        found: list[Any] = []
        began = time.monotonic()
        while len(found) < number:
            took = time.monotonic() - began
            assert took < LIMIT + sum(self.late), (
                f"{number - len(found)} of {number} ranks have not ended in {took:.0f} s, though their threads woke up "
                f"only {sum(self.late):.1f} s too late, all of them together; steps begun: {list(self.begun)}"
            )
            try:
                found.append(self.told.get(timeout=1.0))
            except queue.Empty:
                continue
        return found


class Round(NamedTuple):
    """One job, and what happens to one of its ranks.

    Attributes:
        victim: the rank.
        deed: what happens to it.
        after: seconds from the start of its steps until then.
        pause: seconds until a stopped rank is resumed, or a killed one replaced.
    """

    victim: int
    deed: Deed
    after: float
    pause: float


def a_rank(rank: int, meeting: Meeting, board: Board, insured: Settings = INSURED) -> None:
    """Runs in each process."""
    ranks = len(meeting.addresses)
    shards = cut(whole_of(ranks), ranks)

    def parameters(shard: int) -> ServedPieces:
        return ServedPieces(keras.optimizers.SGD(1.0), variables(np.random.default_rng(0)), shards[shard])

    train(start(serve(parameters, shards, rank, insured), shards, rank, meeting, insured), rank, board)


def a_returned(rank: int, meeting: Meeting, board: Board) -> None:
    """Runs in the replacement of a killed process; it got the ticket when it was forked."""
    shards = cut(whole_of(RANKS), RANKS)
    train(come_back(shards, Ticket(rank, meeting.addresses, meeting.secret), INSURED), RANKS, board)


def train(member: Guest, place: int, board: Board) -> None:
    """Takes all steps, and reports how it ended; all threads' stacks are printed if that takes too long."""
    faulthandler.dump_traceback_later(0.9 * LIMIT)
    board.watch(place)
    pushes = job.pushing(member, INSURED)
    for _ in range(STEPS):
        board.begun[place] += 1
        job.step(member, pushes, np.ones(whole_of(1).size, np.float32), rate=1.0)
        time.sleep(PAUSE)
    final = member.finish()
    faulthandler.cancel_dump_traceback_later()
    board.told.put(Told(place, final, member.connections.updates_lost, member.connections._places))


def play(plan: Round, board: Board) -> list[Told]:
    """Runs a round on an empty board; returns the reports of the processes that end in time."""
    fork = multiprocessing.get_context("fork")
    meeting = Meeting(tuple(free_addresses(RANKS)), secrets.token_bytes(32), None)
    ranks = [fork.Process(target=a_rank, args=(rank, meeting, board)) for rank in range(RANKS)]
    for each in ranks:
        each.start()
    try:
        _strike(plan, ranks[plan.victim].pid, board)
        if plan.deed is Deed.REPLACE:
            ranks.append(fork.Process(target=a_returned, args=(plan.victim, meeting, board)))
            ranks[-1].start()
        lives = RANKS - (plan.deed is Deed.KILL and board.begun[plan.victim] < STEPS)
        found = board.reports(lives)
        check(list(board.begun), found)
        return found
    finally:
        for each in ranks:
            each.kill()
            each.join()


def _strike(plan: Round, process: int, board: Board) -> None:
    while not board.begun[plan.victim]:
        time.sleep(0.01)
    time.sleep(plan.after)
    os.kill(process, signal.SIGSTOP if plan.deed is Deed.STOP else signal.SIGKILL)
    if plan.deed is not Deed.KILL:
        time.sleep(plan.pause)
    if plan.deed is Deed.STOP:
        os.kill(process, signal.SIGCONT)


def check(begun: list[int], found: list[Told]) -> None:
    """Raises AssertionError if the parameters are not among the allowed values."""
    start = np.concatenate([each.numpy().reshape(-1) for each in variables(np.random.default_rng(0))])
    assert len({each.parameters.tobytes() for each in found}) == 1, "ranks end with different parameters"
    applied = start - found[0].parameters
    living = sum(begun[each.place] for each in found)
    moved = {shard for each in found for shard, place in enumerate(each.places) if place != shard}
    assert (applied < sum(begun) + 0.01).all(), f"{applied} were applied of {begun}"
    least, ranks = np.full(applied.shape, living, np.float32), len(found[0].places)
    for shard in moved:  # a slow rank may be taken for dead too
        spec = cut(whole_of(ranks), ranks)[shard]
        least[spec.offset : spec.offset + spec.size] -= INSURED.replicas.age
    assert all(each.updates_lost <= len(moved) * INSURED.replicas.age for each in found)
    assert (applied > least - 0.01).all(), f"{applied} were applied of {begun}, of which {living} by living ranks"


def planned(seed: int, rounds: int) -> list[Round]:
    """Rounds drawn from a seed."""
    draw = random.Random(seed)
    lease = INSURED.replicas.lease
    longest = {Deed.KILL: 0.0, Deed.REPLACE: lease, Deed.STOP: 6 * lease}  # the others wait for a deputy for two leases
    deeds = [draw.choice(list(Deed)) for _ in range(rounds)]
    return [
        Round(draw.randrange(RANKS), deed, draw.uniform(0, STEPS * PAUSE), draw.uniform(0, longest[deed]))
        for deed in deeds
    ]


def _late(plan: Round, board: Board) -> str:
    """How late threads woke up in this round, which a stopped rank's do by intent."""
    late = max(each for place, each in enumerate(board.late) if plan.deed is not Deed.STOP or place != plan.victim)
    return f", threads up to {late:.1f} s late" if late else ""


def main() -> None:
    """Runs rounds one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    longest, moved = 0.0, 0
    for number, plan in enumerate(planned(options.seed, options.rounds), 1):
        began, board = time.monotonic(), Board.of(RANKS + 1)
        found = play(plan, board)
        longest = max(longest, time.monotonic() - began)
        moved += any(each.places[plan.victim] != plan.victim for each in found)
        took = f"{time.monotonic() - began:.1f} s{_late(plan, board)}"
        print(f"{number:4} rank {plan.victim} is {plan.deed.value}: {took}", flush=True)
    print(f"{options.rounds} rounds, {moved} with a deputy that took over, the longest {longest:.1f} s")


if __name__ == "__main__":
    main()
