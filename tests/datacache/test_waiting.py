"""Log messages about long waits: what is waited for, who holds it, and that they are not too frequent."""

import fcntl
import logging
import os
import subprocess
import sys
import threading
import time

import pytest

from datacache import files, waiting

LIMIT = 60  # seconds


@pytest.fixture
def said(monkeypatch):
    """Collects the messages, which are logged at once and each time."""
    monkeypatch.setattr(waiting, "_AFTER", 0.0)
    monkeypatch.setattr(waiting, "_LOOK", 0.01)
    monkeypatch.setattr(waiting, "_watch", waiting._Watch())

    class Kept(logging.Handler):
        def __init__(self):
            super().__init__()
            self.texts, self.any = [], threading.Event()

        def emit(self, record):
            self.texts.append(record.getMessage())
            self.any.set()

    kept = Kept()
    waiting._log.addHandler(kept)
    yield kept
    waiting._log.removeHandler(kept)


def test_a_thread_of_the_same_process_is_named_so(said, tmp_path):
    locks = files.IndexLocks(tmp_path / "locks", "sample {} (a.jpg)".format)
    taken = threading.Event()

    def hold():
        with locks.hold(7):
            taken.set()
            assert said.any.wait(LIMIT)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(LIMIT)
    with locks.hold(7):
        thread.join()
    assert said.texts[0].startswith("datacache: waiting for sample 7 (a.jpg) for 0 s now; it is held by this process")


HOLD = """
import sys
from pathlib import Path
from datacache import files
path, number = Path(sys.argv[1]), int(sys.argv[2])
lock = files.locked(path) if number < 0 else files.IndexLocks(path).hold(number)
with lock:
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("number", [-1, 0, 5])
def test_another_process_is_named_with_its_command(number, said, tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock"), str(number)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with files.IndexLocks(tmp_path / "lock").hold(number + 1):  # held by nobody
            pass
        assert not said.texts
        threading.Thread(target=lambda: said.any.wait(LIMIT) and other.stdin.close()).start()
        lock = files.locked(tmp_path / "lock") if number < 0 else files.IndexLocks(tmp_path / "lock").hold(number)
        with lock:
            pass
    assert f"it is held by process {other.pid} ({sys.executable} -c import sys" in said.texts[0]
    assert "stopped" not in said.texts[0]


def test_who_cannot_be_told_is_not_guessed_and_others_are_counted(said):
    with waiting.told("one"), waiting.told("another"), waiting.told("a third"):
        assert said.any.wait(LIMIT)
    (text, *_) = said.texts
    assert "waiting for one for 0 s now" in text and "a process that cannot be identified" in text


def test_it_is_said_ever_more_seldom(said):
    watch, begun = waiting._watch, time.monotonic()
    watch._interval = waiting._SELDOM - 1
    with waiting.told("one"):
        assert said.any.wait(LIMIT)
    assert watch._silent_until >= begun + waiting._SELDOM - 1 and watch._interval == waiting._SELDOM
    assert len(said.texts) == 1


def test_a_forked_child_does_not_wait_for_its_parents_watch(tmp_path):
    path = tmp_path / "lock"
    with waiting._watch._lock:
        child = os.fork()
        if child == 0:
            with waiting.told("nothing"), files.locked(path):
                os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_holders_are_those_of_the_number(tmp_path):
    locks = files.IndexLocks(tmp_path / "locks")
    with locks.hold(3), open(tmp_path / "locks", "rb") as file:
        assert waiting.holders_of(file.fileno(), 3) == [os.getpid()]
        assert waiting.holders_of(file.fileno(), 4) == []
        fcntl.flock(file, fcntl.LOCK_EX)
        assert waiting.holders_of(file.fileno()) == [os.getpid()]
