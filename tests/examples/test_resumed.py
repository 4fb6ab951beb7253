"""A training that was killed: the same command resumes it."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.parallel.launch import QUIET, ROOT

pytestmark = pytest.mark.thorough

TRAIN = [sys.executable, "-m", "examples.keras_digits", "--epochs", "6", "--checkpoint-dir"]


def started(folder):
    """A job of two ranks."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--gloo", "--disable-cache"]
    return subprocess.Popen(
        [*launcher, *TRAIN, folder],
        cwd=ROOT,
        env={**environment, **QUIET, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kill_a_rank(job):
    family = psutil.Process(job.pid).children(recursive=True)
    ranks = [member for member in family if member.cmdline()[1:3] == TRAIN[1:3]]
    assert len(ranks) == 2, [member.cmdline() for member in family]
    ranks[1].send_signal(signal.SIGKILL)


def test_a_training_whose_rank_was_killed_is_resumed_by_the_same_command(tmp_path):
    with started(tmp_path / "checkpoints") as job:
        printed = []
        for line in job.stdout:
            printed.append(line)
            if "Epoch 4/6" in line:
                kill_a_rank(job)
    assert job.returncode != 0 and "test accuracy" not in "".join(printed), "".join(printed)
    with started(tmp_path / "checkpoints") as job:
        printed = job.stdout.read()
    assert job.returncode == 0, printed
    assert "training resumes from" in printed and "Epoch 1/6" not in printed, printed
    assert "Epoch 6/6" in printed and "test accuracy" in printed, printed
