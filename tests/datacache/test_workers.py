"""Worker threads: results come in order, and workers that do not return are given up."""

import os
import threading

import pytest

from datacache.workers import Workers, threads_of


@pytest.fixture
def one():
    made = Workers(1, "test")
    yield made
    made.close(0)


def test_work_is_done_in_order_and_errors_come_back(one):
    done = []
    futures = [one.submit(done.append, number) for number in range(5)]
    with pytest.raises(ZeroDivisionError):
        one.submit(divmod, 1, 0).result()
    assert done == [0, 1, 2, 3, 4] and all(future.done() for future in futures)


def test_several_threads_work_at_the_same_time():
    made, meeting = Workers(3, "test"), threading.Barrier(3)
    for future in [made.submit(meeting.wait) for _ in range(3)]:
        future.result()
    assert made.close()


def test_closing_cancels_what_waits_and_waits_for_what_runs(one):
    begun, go_on = threading.Event(), threading.Event()
    running = one.submit(lambda: begun.set() or go_on.wait())
    queued = one.submit(int)
    begun.wait()
    threading.Timer(0.1, go_on.set).start()
    assert one.close() and running.result() is True and queued.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        one.submit(int)


def test_what_does_not_come_back_is_given_up(one):
    begun, go_on = threading.Event(), threading.Event()
    running = one.submit(lambda: begun.set() or go_on.wait())
    begun.wait()
    assert not one.close(patience=0)
    with pytest.raises(RuntimeError, match="closed while"):
        running.result()
    go_on.set()
    assert one.close()


@pytest.mark.parametrize("processors, ranks, wanted", [(64, 1, 256), (64, 4, 64), (2, 4, 8), (1, 64, 2)])
def test_the_ranks_of_a_node_share_the_threads_that_fetch(processors, ranks, wanted, monkeypatch):
    """4 for each processor, but at least 32 per node and 2 per rank."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(processors))
    assert threads_of(ranks) == wanted
