"""Kills two ranks of a job on servers, the second after the first one's part has been taken over, or at once.

    python -m tests.servers.second_deaths

Rank 1 of four dies, and rank 2 takes over its part, which then has no replica any more; nor does rank 0's part, whose
deputy rank 1 was. Either all parts of the second victim have a replica, and the others continue with the loss that
replicas allow; or one has none, and all others end with an error that says so. Gradients are as in `kills`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import signal
import time
from typing import Any

from hvd_sparse.servers import ServerLostError
from hvd_sparse.transport.meeting import Meeting
from tests.datacache.node import free_addresses
from tests.servers import kills

RANKS, FIRST, BEFORE = 4, 1, 8
AFTER = 2  # steps: one that began after the first death has ended, so its part has been taken over
SECONDS = ((0, AFTER), (2, AFTER), (2, 0), (3, AFTER))
SURVIVED = 3  # the second victim whose neighbours live
# The lease is longer than in `kills`, as a living rank that is taken for dead would be one death too many.
INSURED = kills.INSURED._replace(replicas=kills.INSURED.replicas._replace(lease=2.0))


def a_rank(rank: int, meeting: Meeting, board: kills.Board) -> None:
    """Runs in each process; it reports whether a part is lost."""
    try:
        kills.a_rank(rank, meeting, board, INSURED)
    except ServerLostError as lost:
        board.told.put(str(lost))


def play(second: int, after: int) -> None:
    """Kills both, the second after so many steps, and checks the reports of the others."""
    fork = multiprocessing.get_context("fork")
    board = kills.Board.of(RANKS)
    meeting = Meeting(tuple(free_addresses(RANKS)), secrets.token_bytes(32), None)
    ranks = [fork.Process(target=a_rank, args=(rank, meeting, board)) for rank in range(RANKS)]
    for each in ranks:
        each.start()
    try:
        _kill(ranks[FIRST].pid, board, range(RANKS), BEFORE)
        living = [rank for rank in range(RANKS) if rank != FIRST]
        _kill(ranks[second].pid, board, living, after)
        found = board.reports(RANKS - 2)
        check(second, after, list(board.begun), found)
    finally:
        for each in ranks:
            each.kill()
            each.join()


def _kill(process: int, board: kills.Board, ranks: Any, steps: int) -> None:
    """Kills a process after the ranks have begun `steps` more steps."""
    before, ends = list(board.begun), time.monotonic() + kills.LIMIT
    while any(board.begun[rank] < before[rank] + steps for rank in ranks):
        assert time.monotonic() < ends + sum(board.late), f"ranks stand still at {list(board.begun)}"
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)


def check(second: int, after: int, begun: list[int], found: list[Any]) -> None:
    """Raises AssertionError if the others have not ended as expected."""
    if second == SURVIVED:
        assert all(isinstance(each, kills.Told) for each in found), found
        assert all(each.places == [0, 2, 2, 0] for each in found), found
        kills.check(begun, found)
        return
    silent = {second, _left_alone({FIRST, second})} | ({FIRST} if after < AFTER else set())
    for each in found:
        assert isinstance(each, str), found
        assert any(f"The server of rank {rank} does not answer" in each for rank in silent), found
        assert "restart the job from its last checkpoint" in each


def _left_alone(gone: set[int]) -> int:
    """The rank whose deputy and witness are gone: it cannot tell this from being cut off, and stops serving."""
    (alone,) = (rank for rank in range(RANKS) if {(rank + 1) % RANKS, (rank + 2) % RANKS} == gone)
    return alone


def main() -> None:
    """Runs a job for each second victim."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for second, after in SECONDS:
        began = time.monotonic()
        play(second, after)
        print(f"ranks {FIRST} and, {after} steps later, {second}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
