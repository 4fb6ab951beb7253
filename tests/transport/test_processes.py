"""What a process sees of another one on its host."""

import os
import signal
import subprocess
import sys
import time

import pytest

from hvd_sparse.transport import processes
from hvd_sparse.transport.processes import GONE, RUNS, STOPPED, Process


@pytest.fixture
def other():
    """A process that waits, with its name in a form that is hard to read."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"], stdin=-1)
    yield child
    child.kill()
    child.wait()


def seen(number: int) -> Process:
    own = Process.own()
    return own._replace(number=number, began=processes._stat(number)[1])


def becomes(process: Process, state: str) -> bool:
    deadline = time.monotonic() + 60
    while process.state() != state and time.monotonic() < deadline:
        time.sleep(0.01)
    return process.state() == state


def test_a_process_that_is_stopped_goes_on_and_ends(other):
    process = seen(other.pid)
    assert process.state() == RUNS
    other.send_signal(signal.SIGSTOP)
    assert becomes(process, STOPPED)
    other.send_signal(signal.SIGCONT)
    assert becomes(process, RUNS)
    other.kill()
    assert becomes(process, GONE)  # before anybody has waited for it
    other.wait()
    assert process.state() == GONE


def test_a_later_process_of_the_same_number_is_another_one(other):
    assert seen(other.pid)._replace(began="1").state() == GONE


def test_processes_of_other_hosts_and_of_other_containers_cannot_be_seen(other):
    assert seen(other.pid)._replace(space="elsewhere").state() is None


def test_it_survives_json():
    import json

    own = Process.own()
    assert Process(*json.loads(json.dumps(own))) == own and own.number == os.getpid()
