"""How a thread finds out where another one waits."""

import sys
import threading
import time

from hvd_sparse.transport.stalls import WatchedThread


def waiting(entered, released):
    """The function in which the watched thread waits."""
    entered.set()
    released.wait()


def watched_beside(function):
    """The result of a function for a thread that waits in `waiting` during the call."""
    entered, released, made = threading.Event(), threading.Event(), []

    def work():
        made.append(WatchedThread())
        waiting(entered, released)

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    try:
        return function(made[0])
    finally:
        released.set()
        thread.join()


def test_the_stack_of_the_one_thread_is_read():
    def names(watched):
        found, frame = [], watched.frame()
        while frame is not None:
            found.append(frame.f_code.co_name)
            frame = frame.f_back
        return found

    assert "waiting" in watched_beside(names) and "work" in watched_beside(names)


def test_the_frame_is_not_kept_alive():
    def counts(watched):
        before = sys.getrefcount(watched.frame())
        for _ in range(100):
            watched.frame()
        return sys.getrefcount(watched.frame()) - before

    assert watched_beside(counts) == 0


def test_a_thread_that_waits_does_not_compute():
    def computed(watched):
        time.sleep(0.2)  # until it waits
        before = watched.computed()
        time.sleep(0.2)
        return watched.computed() - before

    assert watched_beside(computed) < 2e-4
    here = WatchedThread()
    before = here.computed()
    sum(range(200_000))
    assert here.computed() - before > 2e-4
