"""Runs the launch files for clusters as a user does."""

import os
import re
import shlex
import subprocess
import sys

from tests.parallel import launch

FOLDER = launch.ROOT / "examples" / "launch"
TRAIN = [sys.executable, "-m", "examples.keras_digits", "--epochs", "3"]


def run(name, *arguments, environment=None, limit=60):
    """Runs a launch file as a user does, from the repository's folder."""
    command = [str(FOLDER / name), *arguments] if name.endswith(".sh") else [sys.executable, "-m", name, *arguments]
    return subprocess.run(
        command,
        cwd=launch.ROOT,
        env={**os.environ, **launch.QUIET, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit,
    )


def dry(name, *arguments, environment=None, train=TRAIN):
    """The commands of a dry run, split into words, without comments; and its whole output."""
    ended = run(name, "--dry-run", *arguments, "--", *train, environment=environment)
    assert ended.returncode == 0, ended.stderr
    assert subprocess.run(["bash", "-n"], input=ended.stdout, text=True, capture_output=True).returncode == 0
    return [shlex.split(line) for line in ended.stdout.splitlines() if line and not line.startswith("#")], ended.stdout


def refused(name, *arguments, environment=None):
    """The error message of a launch file."""
    ended = run(name, *arguments, environment=environment)
    assert ended.returncode != 0 and "Traceback" not in ended.stderr, ended
    return ended.stderr


def value(words, option):
    return words[words.index(option) + 1]


def trains(ended):
    """Asserts that a run has learned."""
    assert ended.returncode == 0, ended.stdout + ended.stderr
    accuracy = re.search(r"test accuracy (\d\.\d+)", ended.stdout)
    assert accuracy and float(accuracy[1]) > 0.6, ended.stdout
