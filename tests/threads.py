"""Ranks as threads of one process, so that properties can be tested quickly on many numbers of ranks.

    def one_rank(grid):
        state = recipe.init(Spec(size, grid))
        return recipe.aggregate(vectors[grid.world.rank], state)

    means = threads.run(ranks=6, local_size=3, function=one_rank)

Only eager code works: a collective waits for the other threads when it is called, and a `tf.function` runs eagerly.
Sums are in rank order, which Horovod's own all-reduce does not promise.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse.transport.communicator import Communicator, Grid, LoneCommunicator

PATIENCE = 300.0  # seconds a rank waits for the others; even on a busy machine only a bug can exceed this
_REDUCTIONS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


class Call(NamedTuple):
    """A rank's part in a collective: all but the value must be the same on all ranks."""

    collective: str
    name: str
    signature: Any
    value: Any


class Mismatch(Exception):
    """The ranks of a group have called different collectives; with Horovod they would wait forever."""


class Deserted(Exception):
    """Another rank of the group has failed or did not arrive in time."""


class _Meeting:
    """Where the ranks of one group wait for each other and exchange values, round after round."""

    def __init__(self, size: int, in_order: bool):
        self._size = size
        self._in_order = in_order
        self._condition = threading.Condition()
        self._rounds: dict[tuple[str, int], dict[int, Call]] = {}
        self._numbers: list[dict[str, int]] = [{} for _ in range(size)]
        self._left = False

    def meet(self, rank: int, call: Call) -> list[Any]:
        line = "" if self._in_order else call.name
        with self._condition:
            number = self._numbers[rank].get(line, 0)
            self._numbers[rank][line] = number + 1
            brought = self._rounds.setdefault((line, number), {})
            brought[rank] = call
            if len(brought) == self._size:
                self._condition.notify_all()
            self._condition.wait_for(lambda: self._left or len(brought) == self._size, PATIENCE)
            # All ranks in this round have seen the previous one.
            self._rounds.pop((line, number - 1), None)
        if len(brought) < self._size:
            raise Deserted(f"{call.collective} {call.name}: only ranks {sorted(brought)} came")
        calls = [brought[other] for other in range(self._size)]
        if any(other[:3] != call[:3] for other in calls):
            raise Mismatch("; ".join(f"rank {number}: {other[:3]}" for number, other in enumerate(calls)))
        return [other.value for other in calls]

    def leave(self) -> None:
        """Stops all waiting, now and later."""
        with self._condition:
            self._left = True
            self._condition.notify_all()


class ThreadCommunicator(Communicator):
    """One thread's place in a group; `sent` counts the payload bytes that this rank sends to each world rank.

    All-reduce and all-gather count as rings, broadcast as a star.
    """

    def __init__(self, name: str, ranks: Sequence[int], rank: int, meeting: _Meeting):
        super().__init__(name, ranks, rank)
        self._meeting = meeting
        self.sent: dict[int, int] = {}

    def leave(self) -> None:
        """Stops the others of the group from waiting for this rank."""
        self._meeting.leave()

    def _meet(self, collective: str, name: str, signature: Any, value: Any) -> list[Any]:
        return self._meeting.meet(self.rank, Call(collective, f"{self.name}.{name}", signature, value))

    def _count(self, to: int, sent: int) -> None:
        world_rank = self.ranks[to % self.size]
        self.sent[world_rank] = self.sent.get(world_rank, 0) + sent

    def _allreduce(self, tensor, op, name):
        own = tensor.numpy()
        everyone = self._meet("allreduce", name, (op, own.shape, own.dtype), own)
        self._count(self.rank + 1, 2 * (self.size - 1) * own.nbytes // self.size)
        return tf.constant(functools.reduce(_REDUCTIONS[op], everyone))

    def _allgather(self, tensor, name, lengths):
        own = tensor.numpy()
        if lengths is not None and lengths[self.rank] != len(own):
            raise Mismatch(f"allgather {name}: {len(own)} rows where {lengths[self.rank]} were announced")
        everyone = self._meet("allgather", name, (own.shape[1:], own.dtype), own)
        self._count(self.rank + 1, (self.size - 1) * own.nbytes)
        return tf.constant(np.concatenate(everyone))

    def _alltoall(self, tensor, splits, name):
        own = tensor.numpy()
        everyone = self._meet("alltoall", name, (tuple(splits), own.shape, own.dtype), own)
        ends = np.cumsum(splits)
        for rank in range(self.size):
            if rank != self.rank:
                self._count(rank, own[ends[rank] - splits[rank] : ends[rank]].nbytes)
        mine = slice(ends[self.rank] - splits[self.rank], ends[self.rank])
        return tf.constant(np.concatenate([other[mine] for other in everyone]))

    def _alltoall_ragged(self, tensor, splits, name):
        own, lengths = tensor.numpy(), splits.numpy()
        if lengths.sum() != len(own):
            raise Mismatch(f"alltoall_ragged {name}: {len(own)} rows where {lengths.sum()} were announced")
        everyone = self._meet("alltoall_ragged", name, (own.shape[1:], own.dtype), (own, lengths))
        for rank, piece in enumerate(np.split(own, np.cumsum(lengths)[:-1])):
            if rank != self.rank:
                self._count(rank, piece.nbytes)
        received = [np.split(rows, np.cumsum(splits)[:-1])[self.rank] for rows, splits in everyone]
        return tf.constant(np.concatenate(received)), tf.constant([len(rows) for rows in received], tf.int32)

    def _broadcast(self, tensor, root, name):
        own = tensor.numpy()
        everyone = self._meet("broadcast", name, (root, own.shape, own.dtype), own)
        return tf.constant(everyone[root])


class RanksFailed(Exception):
    """Some ranks raised; `errors` holds each rank's exception, None where it returned."""

    def __init__(self, errors: Sequence[BaseException | None]):
        super().__init__("; ".join(f"rank {rank}: {error!r}" for rank, error in enumerate(errors) if error))
        self.errors = errors


def grids(ranks: int, local_size: int, in_order: bool = True) -> list[Grid]:
    """Each rank's grid, numbered node by node; `in_order` as in `run`."""
    nodes = Grid.of_nodes(ranks // local_size, local_size)
    groups = {"world": [list(range(ranks))], "node": nodes, "cross": list(zip(*nodes, strict=True))}
    members: list[dict[str, Communicator]] = [{} for _ in range(ranks)]
    for name, group in ((name, group) for name, partition in groups.items() for group in partition):
        meeting = _Meeting(len(group), in_order)
        for position, rank in enumerate(group):
            lone = len(group) == 1
            members[rank][name] = (
                LoneCommunicator(name, rank) if lone else ThreadCommunicator(name, group, position, meeting)
            )
    return [Grid(**member) for member in members]


def sent(grid: Grid) -> dict[int, int]:
    """Payload bytes that this rank has sent so far to each world rank."""
    counted: dict[int, int] = {}
    for communicator in grid:
        if isinstance(communicator, ThreadCommunicator):
            for to, count in communicator.sent.items():
                counted[to] = counted.get(to, 0) + count
    return counted


def run(ranks: int, local_size: int, function: Callable[[Grid], Any], in_order: bool = True) -> list[Any]:
    """Calls a function once per rank, all at the same time, and returns the results by rank.

    All ranks of a group must call its collectives in the same order; a different order is reported as an error. Without
    `in_order`, calls are matched by name, as in Horovod, so that several can be in flight.

    Raises:
        RanksFailed: if any rank raises; the others then stop waiting for it.
    """
    return run_on(grids(ranks, local_size, in_order), function)


def run_on(everyone: Sequence[Grid], function: Callable[[Grid], Any]) -> list[Any]:
    """As `run`, on grids made by `grids`, so that ranks can continue with state they made before."""
    ranks = len(everyone)
    results: list[Any] = [None] * ranks
    errors: list[BaseException | None] = [None] * ranks
    core = own_core()

    def body(rank: int) -> None:
        os.sched_setaffinity(0, core)
        try:
            results[rank] = function(everyone[rank])
        except BaseException as error:
            errors[rank] = error
            _leave(everyone[rank])

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(ranks)]
    with _eagerly():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    causes = [None if isinstance(error, Deserted) else error for error in errors]
    if any(errors):
        raise RanksFailed(causes if any(causes) else errors)
    return results


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Makes functions run eagerly in all threads."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def own_core() -> set[int]:
    """One core for all ranks of a process, a different one for each test worker.

    Only one thread runs Python at a time, and passing the interpreter lock between cores takes as long as the work.
    """
    cores = sorted(os.sched_getaffinity(0))
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return {cores[int(worker) % len(cores)]}


def _leave(grid: Grid) -> None:
    """Stops the other ranks from waiting for a rank that has failed."""
    for communicator in grid:
        if isinstance(communicator, ThreadCommunicator):
            communicator.leave()
