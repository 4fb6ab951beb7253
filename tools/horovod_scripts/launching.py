"""Starts ranks with horovodrun in a folder, and leaves no process behind."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import psutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
STAND_INS = pathlib.Path(__file__).resolve().parent / "stand_ins"

# One thread per rank, as the ranks share this machine's cores, and little logging.
QUIET = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "KERAS_BACKEND": "tensorflow",
}


@dataclasses.dataclass(frozen=True)
class Ended:
    """The launcher's exit status, or None if it exceeded the time limit, and the output of all ranks."""

    status: int | None
    output: str


@contextlib.contextmanager
def started(ranks: int, command: Sequence[str], folder: pathlib.Path, further: Mapping[str, str] = {}) -> Iterator:
    """A running `horovodrun -np RANKS --gloo python COMMAND` and its output file; killed at the end."""
    path = os.pathsep.join([str(ROOT), str(STAND_INS), *filter(None, [os.environ.get("PYTHONPATH")])])
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks), "--gloo", "--disable-cache"]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [*launcher, sys.executable, *command],
            cwd=folder,
            env={**os.environ, **QUIET, "PYTHONPATH": path, "HOME": str(folder), **further},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process, output
        finally:
            _kill_tree(process)


def run(
    ranks: int, command: Sequence[str], folder: pathlib.Path, limit: float, further: Mapping[str, str] = {}
) -> Ended:
    """Runs a command on ranks until it ends or has run for `limit` seconds."""
    with started(ranks, command, folder, further) as (process, output):
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        output.seek(0)
        return Ended(status, output.read().decode(errors="replace"))


def _kill_tree(process: subprocess.Popen) -> None:
    """Kills a launcher and all its descendants; Horovod puts ranks into sessions of their own."""
    if process.poll() is not None:
        return  # another process may have its number by now
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid)
        for member in [*family.children(recursive=True), family]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)
    process.wait()
