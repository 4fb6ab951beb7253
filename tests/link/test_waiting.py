"""Waits that Ctrl-C ends, also if another thread takes the signal, which alone would not wake the main thread."""

import concurrent.futures
import signal
import threading
import time

import pytest

import link

LATE = 10.0  # seconds after which a wait that was not interrupted ends


@pytest.fixture
def interrupted():
    """Has another thread take SIGINT once the main thread waits, and later calls what ends the wait."""
    ends = []

    def interrupt():
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not over.wait(LATE):
            ends[0]()

    over, thread = threading.Event(), threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def begin(end):
        ends.append(end)
        thread.start()

    yield begin
    over.set()
    thread.join()
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_wait_for_a_future(interrupted):
    future = concurrent.futures.Future()
    interrupted(lambda: future.set_result(None))
    with pytest.raises(KeyboardInterrupt):
        link.result_of(future)
    assert not future.done()


def test_ctrl_c_ends_a_wait_for_a_condition(interrupted):
    changed, is_so = threading.Condition(), threading.Event()

    def end():
        with changed:
            is_so.set()
            changed.notify_all()

    interrupted(end)
    with pytest.raises(KeyboardInterrupt), changed:
        link.wait_until(is_so.is_set, changed)
    assert not is_so.is_set()


def test_waits_end_with_what_they_wait_for():
    future = concurrent.futures.Future()
    threading.Timer(0.05, future.set_result, ["said"]).start()
    assert link.result_of(future) == "said"
    future = concurrent.futures.Future()
    future.set_exception(link.LinkError(1, "it is gone"))
    with pytest.raises(link.LinkError, match="it is gone"):
        link.result_of(future)
    changed = threading.Condition()
    with changed:
        link.wait_until(lambda: True, changed)


def test_a_failed_future_ends_a_wait_for_several():
    failed, never = concurrent.futures.Future(), concurrent.futures.Future()
    failed.set_exception(ValueError())
    link.wait([never, failed])
    assert not never.done()
