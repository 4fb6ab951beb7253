"""Ranks in one process that average by real datagrams, through a relay, and the properties of each segment."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.averaging import endpoints
from hvd_sparse.averaging.blocks import Blocks
from hvd_sparse.averaging.datagrams import DatagramsChannel, End, Ticket
from tests.averaging.relay import Habits, Relay
from tests.simulation import same_bits

LONG = 300.0  # seconds: for tests that must not depend on how busy the machine is
KEY = bytes(range(16))
NONE = Habits()


class Ranks:
    """Endpoints in one process that communicate through a relay."""

    def __init__(self, ranks: int, size: int, habits: Habits = NONE, **settings: Any):
        self.size, self.relay = size, Relay(ranks, habits)
        self._settings = {"multiple": 1.0, "slack": LONG, "least": LONG, "patience": LONG, **settings}
        opened = [self.open(rank, ranks, 1, 0) for rank in range(ranks)]
        self.ports = [port for _, port in opened]
        self.relay.start(self.ports)
        self.channels: list[Any] = [self.join(rank, number, [1] * ranks) for rank, (number, _) in enumerate(opened)]

    def open(self, rank: int, ranks: int, start: int, port: int) -> tuple[int, int]:
        settings = endpoints.Settings(
            ranks=ranks, me=rank, size=self.size, rotate=True, datagram=1472, offload=True, start=start, rate=0.0
        )
        for name, value in self._settings.items():
            setattr(settings, name, value)
        return endpoints.open_endpoint(settings, "127.0.0.1", port)

    def join(self, rank: int, number: int, starts: list[int], key: bytes = KEY) -> DatagramsChannel:
        ranks = len(starts)
        endpoints.join(number, ["127.0.0.1"] * ranks, self.relay.ports_for(rank), starts, key)
        ends = [End("127.0.0.1", port, 1, "") for port in self.ports]
        return DatagramsChannel(number, Ticket(rank, self.size, True, ends, ""), bool(self._settings.get("spread")))

    def begin_anew(self, rank: int) -> None:
        """Simulates a new process in place of one that has ended."""
        number, _ = self.open(rank, len(self.ports), 2, self.ports[rank])
        self.channels[rank] = self.join(rank, number, [1] * len(self.ports))

    def average(self, own: np.ndarray, round: int, who: list[int] | None = None) -> dict[int, Any]:
        """Runs one round on own [P, d] between the given ranks; returns the results by rank."""
        who = list(range(len(own))) if who is None else who
        made: dict[int, Any] = {}

        def one(rank: int) -> None:
            made[rank] = self.channels[rank].average(tf.constant(own[rank]), tf.constant(round, tf.int64))

        together([lambda rank=rank: one(rank) for rank in who])
        assert sorted(made) == who, "a rank has failed"
        return made

    def close(self) -> None:
        for channel in self.channels:
            channel.close()
        self.relay.close()


def together(calls: list[Callable[[], None]]) -> None:
    running = [threading.Thread(target=call) for call in calls]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def check(group: Ranks, own: np.ndarray, made: dict[int, Any]) -> int:
    """Compares each segment of a round with the mean of its recorded contributors; returns the number of lost ones."""
    count = len(own)
    blocks = Blocks(group.size, count)
    recorded = {rank: group.channels[rank].recorded() for rank in made}
    lost = 0
    for rank, averaged in made.items():
        new = averaged.vector.numpy()
        round = int(averaged.round)
        for block in range(count):
            owner = blocks.owner_of(block, round, True)
            end = min((block + 1) * blocks.length, group.size)
            for number, start in enumerate(range(block * blocks.length, end, recorded[rank].segment)):
                here = slice(start, min(start + recorded[rank].segment, end))
                if recorded[rank].came[block, number]:
                    same_bits(new[here], mean_of(own[:, here], int(recorded[owner].contributors[number])))
                else:
                    assert owner != rank
                    same_bits(new[here], own[rank, here])
        lost += int((averaged.expected - averaged.arrived).numpy().sum())
        _counts_agree(averaged, recorded[rank], rank, blocks, round)
    return lost


def mean_of(parts: np.ndarray, contributors: int) -> np.ndarray:
    """The mean that `Transport` specifies for one segment of parts [P, elements]."""
    there = [rank for rank in range(len(parts)) if contributors >> rank & 1]
    total = parts[there[0]].copy()
    for rank in there[1:]:
        total += parts[rank]
    return total / np.float32(len(there))


def _counts_agree(averaged: Any, recorded: Any, rank: int, blocks: Blocks, round: int) -> None:
    """Asserts that the reported numbers of received pieces equal the recorded ones."""
    arrived = averaged.arrived.numpy()
    for other in range(blocks.ranks):
        if other == rank:
            continue
        has = (recorded.contributors >> np.uint64(other)) & np.uint64(1)
        assert arrived[0, other] == int(has.sum())
        assert arrived[1, other] == int(recorded.came[blocks.block_of(other, round, True)].sum())


def all_lost_is_told_of(group: Ranks, lost: int) -> None:
    """Asserts that the missing segments are those the relay dropped or delivered late; held ones may take a while."""
    until = time.monotonic() + LONG
    while lost != group.relay.dropped + sum(_came_late(channel) for channel in group.channels):
        assert time.monotonic() < until, (lost, group.relay.dropped, [_came_late(each) for each in group.channels])
        os.sched_yield()


def _came_late(channel: DatagramsChannel) -> int:
    fates = channel.report()["datagrams"]
    return int(fates["late"] + fates["other_round"])
