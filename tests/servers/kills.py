"""Kills and stops ranks of small jobs on servers at random, and checks what becomes of the others.

    python -m tests.servers.kills --rounds 200 --seed 1

Ranks are processes with sockets between them. In each round one of them is killed (SIGKILL), or stopped (SIGSTOP) and
let go on after a while, which may be longer than a lease. Gradients are of ones and descent is plain at rate 1, so that
parameters count the pushes that were applied: none may count twice, and of those of living ranks no more may be missing
than replicas allow, and these only where the server is gone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import secrets
import signal
import time
from typing import Any, NamedTuple

import keras
import numpy as np

from hvd_sparse.servers.applying import ServedPieces
from hvd_sparse.servers.joining import serve
from hvd_sparse.servers.member import start
from hvd_sparse.servers.pushing import cut
from hvd_sparse.servers.replicas import Replicas
from hvd_sparse.servers.rules import InOrderOfArrival
from hvd_sparse.servers.settings import Settings
from hvd_sparse.transport.meeting import Meeting
from tests.datacache.node import free_addresses
from tests.servers import members as job
from tests.servers.simulated import variables, whole_of

RANKS, STEPS, PAUSE = 3, 60, 0.02
LIMIT = 60.0  # seconds of a round, by far more than a lease, a silence and all steps take
INSURED = Settings(None, None, InOrderOfArrival(max_staleness=8), None, Replicas(age=6, lease=1.0))


class Told(NamedTuple):
    """What a rank tells at its end."""

    rank: int
    parameters: np.ndarray
    updates_lost: int
    places: list[int]


class Round(NamedTuple):
    """One job, and what is done to it.

    Attributes:
        victim: a rank.
        number: the signal that it gets.
        after: seconds from the begin of its steps until then.
        pause: seconds until a stopped one goes on.
    """

    victim: int
    number: signal.Signals
    after: float
    pause: float


def a_rank(rank: int, meeting: Meeting, begun: Any, told: Any) -> None:
    """What each process does."""
    shards = cut(whole_of(RANKS), RANKS)

    def parameters(shard: int) -> ServedPieces:
        return ServedPieces(keras.optimizers.SGD(1.0), variables(np.random.default_rng(0)), shards[shard])

    member = start(serve(parameters, shards, rank, INSURED), shards, rank, meeting, INSURED)
    pushes = job.pushing(member, INSURED)
    for _ in range(STEPS):
        begun[rank] += 1
        job.step(member, pushes, np.ones(whole_of(1).size, np.float32), rate=1.0)
        time.sleep(PAUSE)
    final = member.finish()
    told.put(Told(rank, final, member.connections.updates_lost, member.connections._places))


def play(plan: Round) -> list[Told]:
    """Plays a round; what those tell who end in time."""
    fork = multiprocessing.get_context("fork")
    begun, told = fork.Array("i", RANKS, lock=False), fork.Queue()
    meeting = Meeting(tuple(free_addresses(RANKS)), secrets.token_bytes(32), None)
    ranks = [fork.Process(target=a_rank, args=(rank, meeting, begun, told)) for rank in range(RANKS)]
    for each in ranks:
        each.start()
    try:
        _strike(plan, ranks[plan.victim].pid, begun)
        lives = RANKS - (plan.number == signal.SIGKILL and begun[plan.victim] < STEPS)
        found = [told.get(timeout=LIMIT) for _ in range(lives)]
        check(list(begun), found)
        return found
    finally:
        for each in ranks:
            each.kill()
            each.join()


def _strike(plan: Round, process: int, begun: Any) -> None:
    while not begun[plan.victim]:
        time.sleep(0.01)
    time.sleep(plan.after)
    os.kill(process, plan.number)
    if plan.number == signal.SIGSTOP:
        time.sleep(plan.pause)
        os.kill(process, signal.SIGCONT)


def check(begun: list[int], found: list[Told]) -> None:
    """Raises AssertionError where the parameters are not what they may be."""
    start = np.concatenate([each.numpy().reshape(-1) for each in variables(np.random.default_rng(0))])
    assert len({each.parameters.tobytes() for each in found}) == 1, "ranks end with different parameters"
    applied = start - found[0].parameters
    living = sum(begun[each.rank] for each in found)
    moved = {shard for each in found for shard, place in enumerate(each.places) if place != shard}
    assert (applied < sum(begun) + 0.01).all(), f"{applied} were applied of {begun}"
    least = np.full(applied.shape, living, np.float32)
    for shard in moved:  # a rank that is slow enough may be taken for gone, too
        spec = cut(whole_of(RANKS), RANKS)[shard]
        least[spec.offset : spec.offset + spec.size] -= INSURED.replicas.age
    assert all(each.updates_lost <= len(moved) * INSURED.replicas.age for each in found)
    assert (applied > least - 0.01).all(), f"{applied} were applied of {begun}, of which {living} by living ranks"


def planned(seed: int, rounds: int) -> list[Round]:
    """Rounds drawn by a seed."""
    draw = random.Random(seed)
    signals = (signal.SIGKILL, signal.SIGSTOP)
    lease = INSURED.replicas.lease
    return [
        Round(draw.randrange(RANKS), draw.choice(signals), draw.uniform(0, STEPS * PAUSE), draw.uniform(0, 6 * lease))
        for _ in range(rounds)
    ]


def main() -> None:
    """Plays rounds one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    longest, moved = 0.0, 0
    for number, plan in enumerate(planned(options.seed, options.rounds), 1):
        began = time.monotonic()
        found = play(plan)
        longest = max(longest, time.monotonic() - began)
        moved += any(each.places[plan.victim] != plan.victim for each in found)
        print(f"{number:4} {plan.number.name} of rank {plan.victim}: {time.monotonic() - began:.1f} s", flush=True)
    print(f"{options.rounds} rounds, {moved} with a deputy that took over, the longest {longest:.1f} s")


if __name__ == "__main__":
    main()
