"""Ranks as threads of one process, each with its own server and connections: real sockets on this machine."""

from __future__ import annotations

import os
import secrets
import threading

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.servers.applying import LazyPieces, ServedPieces
from hvd_sparse.servers.joining import serve
from hvd_sparse.servers.member import Member, start
from hvd_sparse.servers.pushing import Pushes, cut, entries
from hvd_sparse.servers.rules import InOrderOfArrival
from hvd_sparse.servers.settings import Settings
from hvd_sparse.transport.meeting import Meeting
from tests import threads
from tests.datacache.node import free_addresses
from tests.servers.simulated import variables, whole_of

ASYNCHRONOUS = Settings(None, None, InOrderOfArrival(), None)


def started(ranks: int, settings: Settings = ASYNCHRONOUS, rate: float = 0.1) -> list[Member]:
    """A member for each rank; all start with the same variables."""
    shards = cut(whole_of(ranks), ranks)
    meeting = Meeting(tuple(free_addresses(ranks)), secrets.token_bytes(32), None)
    begin, made = variables(np.random.default_rng(0)), [None] * ranks

    pieces = LazyPieces if settings.lazy else ServedPieces

    def one(rank: int) -> None:
        def parameters(shard: int) -> ServedPieces | LazyPieces:
            return pieces(keras.optimizers.SGD(rate), begin, shards[shard])

        made[rank] = start(serve(parameters, shards, rank, settings), shards, rank, meeting, settings)

    each(ranks, one)
    return made


def each(ranks: int, function) -> None:
    """Calls a function for each rank, each on its own thread, all on one core; raises an exception raised by any."""
    problems, core = [], threads.own_core()

    def guarded(rank: int) -> None:
        os.sched_setaffinity(0, core)  # also for the threads that it starts
        try:
            function(rank)
        except BaseException as problem:
            problems.append(problem)

    running = [threading.Thread(target=guarded, args=(rank,)) for rank in range(ranks)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if problems:
        raise problems[0]


def pushing(member: Member, settings: Settings) -> Pushes:
    return Pushes(settings.push, member.shards)


def step(member: Member, pushes: Pushes, gradient: np.ndarray, rate: float = 0.1) -> None:
    chosen = pushes.choose([tf.constant(gradient)])
    member.connections.step(rate, [entries([part.numpy() for part in parts]) for parts in chosen])


def finish(members: list[Member]) -> list[np.ndarray]:
    """Ends all members; returns the parameters of each."""
    final: list[np.ndarray] = [np.empty(0)] * len(members)

    def one(rank: int) -> None:
        final[rank] = members[rank].finish()

    each(len(members), one)
    return final
