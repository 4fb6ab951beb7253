"""Sets of living objects: what threads add while others go through them, and what is gone."""

import gc
import sys
import threading

import pytest

from hvd_sparse._living import Living


class Thing:
    pass


@pytest.fixture
def switching():
    """Lets threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_add_while_others_go_through_all(switching):
    living, kept, done, errors = Living(), [], threading.Event(), []

    def add():
        for _ in range(3000):
            kept.append(Thing())
            living.add(kept[-1])
        done.set()

    def look():
        while not done.is_set():
            try:
                assert len({id(each) for each in living}) <= len(kept)
            except RuntimeError as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=each) for each in (add, look, look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and set(living) == set(kept)


def test_what_is_gone_is_not_in_it():
    living, kept = Living(), Thing()
    living.add(kept)
    living.add(Thing())
    gc.collect()
    assert list(living) == [kept]
