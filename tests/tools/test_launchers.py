"""The comparison of launchers: what it reads and what it compares; and one of them for real."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import uuid

import pytest

from tests.parallel.launch import ROOT
from tools.launchers import __main__ as launchers
from tools.launchers import hosts
from tools.launchers.jobs import JobError

PRINTED = """
[0]<stdout>:29/29 - 3s - 110ms/step - accuracy: 0.7996 - loss: 0.6791
[0]<stdout>:29/29 - 8s - 274ms/step - accuracy: 0.9220 - loss: 0.2652
[0]<stdout>:test accuracy 0.9532
"""


def test_the_last_epoch_counts():
    assert launchers.metrics(PRINTED) == {"loss": "0.2652", "test accuracy": "0.9532"}


def test_a_job_without_metrics_has_failed():
    with pytest.raises(JobError, match="printed no test accuracy"):
        launchers.metrics(PRINTED.replace("test accuracy", "accuracy"))


def test_the_table_says_whether_metrics_are_the_same():
    one, other = {"loss": "0.2", "test accuracy": "0.9"}, {"loss": "0.3", "test accuracy": "0.9"}
    assert launchers.table({"mpi": one, "ray": dict(one)})[-1] == "The metrics are the same."
    lines = launchers.table({"mpi": one, "ray": other})
    assert lines[-1] == "The metrics DIFFER." and lines[2].split() == ["ray", "0.3", "0.9"]
    assert launchers.agree({"mpi": one}) and not launchers.agree({"mpi": one, "ray": other})


@pytest.mark.skipif(hosts.unavailable() is not None, reason=str(hosts.unavailable()))
def test_hosts_end_with_a_process_that_is_killed():
    program = (
        "import os, signal\n"
        "from tools.launchers import hosts\n"
        "with hosts.made() as two:\n"
        "    print(*two.names, two.folder, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    printed = killed.stdout.read() if killed.stdout else ""  # until the guard ends, which has this output, too
    killed.wait()
    *names, folder = printed.split()
    assert len(names) == 2
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    servers = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True).stdout
    assert [name for name in names if name in listed] == []
    assert [line for line in servers.splitlines() if folder in line] == []
    shutil.rmtree(folder)


@pytest.mark.thorough
@pytest.mark.skipif(hosts.unavailable() is not None, reason=str(hosts.unavailable()))
def test_one_launcher_trains_for_real():
    command = [sys.executable, "-m", "tools.launchers", "horovodrun", "--epochs", "2"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0 and "ok      horovodrun" in ended.stdout, ended.stdout + ended.stderr


@pytest.mark.thorough
@pytest.mark.skipif(hosts.unavailable() is not None, reason=str(hosts.unavailable()))
def test_nothing_is_left_of_a_job_that_is_interrupted():
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "tools.launchers", "horovodrun", "--epochs", "50"]
    running = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "MARK": mark}, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    until = time.monotonic() + 300
    while not any("keras_digits" in each for each in processes(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    assert running.wait(60) == 128 + signal.SIGINT
    while processes(mark) and time.monotonic() < until:  # the guard of the hosts ends last
        time.sleep(0.1)
    assert processes(mark) == []


def processes(mark):
    """The command lines of processes that have this mark in their environment, other than this one."""
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if mark in (place / "environ").read_text() and place.name != str(os.getpid()):
                found.append((place / "cmdline").read_text().replace("\0", " "))
    return [each for each in found if each]
