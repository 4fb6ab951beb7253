"""Ranks that leave, pause, are cut off or come back, without a network."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_sparse.compression.selectors import TopK
from hvd_sparse.servers.rules import InOrderOfArrival, Together
from tests.servers.simulated import Job
from tests.servers.test_laws import CODED, OPTIMIZERS, SIZE


def test_who_has_left_is_not_waited_for():
    job = Job(3, OPTIMIZERS["SGD"], rule=Together())
    for client in (0, 1):
        job.send(client, np.ones(SIZE, np.float32))
        for server in range(3):
            job.deliver(client, server)
    assert set(job.flights) == {0, 1}
    for server, shard in enumerate(job.servers):
        for client, pull in shard.leave(2):
            job.arrive(client, server, pull)
    assert not job.flights and all(server.version == 1 for server in job.servers)


def test_who_pauses_is_not_waited_for():
    job = Job(2, OPTIMIZERS["SGD"], rule=InOrderOfArrival(max_staleness=0))
    for server in job.servers:
        server.pause(1)
    for _ in range(3):
        job.step(0, np.ones(SIZE, np.float32))
    assert all(server.expected == {0, 1} for server in job.servers), "it may go on"
    job.send(1, np.ones(SIZE, np.float32))
    for server in range(2):
        job.deliver(1, server)
    assert set(job.flights) == {1}, "it is waited for again, and waits itself"


@pytest.mark.parametrize("pull", [TopK(0.1), CODED[0]])
def test_who_has_lost_the_connection_is_not_waited_for_and_can_go_on(pull):
    job = Job(3, OPTIMIZERS["SGD"], pull=pull, rule=Together())
    for server in job.servers:
        server.lose_sight_of(2)
    for client in (0, 1):
        job.send(client, np.ones(SIZE, np.float32))
        for server in range(3):
            job.deliver(client, server)
    assert not job.flights and all(server.version == 1 for server in job.servers)
    job.send(2, np.ones(SIZE, np.float32))
    for server in range(3):
        job.deliver(2, server)
    assert set(job.flights) == {2}, "it is one of those that are waited for again"
    for client in (0, 1):
        job.send(client, np.ones(SIZE, np.float32))
        for server in range(3):
            job.deliver(client, server)
    assert not job.flights, "it has got what it had missed, too"


def test_who_comes_back_begins_with_all():
    job = Job(2, OPTIMIZERS["SGD"], pull=TopK(0.1))
    for _ in range(3):
        job.step(0, np.ones(SIZE, np.float32))
    job.begin(1)
    assert job.copies[1].values.tobytes() == job.parameters().tobytes()
    job.step(1, np.ones(SIZE, np.float32))
