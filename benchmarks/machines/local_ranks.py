"""Ranks of a benchmark on this host, with one thread each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def run(ranks: int, words: Sequence[str], limit: float) -> None:
    """Runs a module on `ranks` ranks.

    Args:
        ranks: number of ranks.
        words: the module, and its arguments.
        limit: seconds.

    Raises:
        subprocess.CalledProcessError: if they fail.
        subprocess.TimeoutExpired: if they take longer.
    """
    launcher = [sys.executable, "-m", "benchmarks.launcher", "-np", str(ranks), "--gloo", "--disable-cache"]
    command = [*launcher, sys.executable, "-m", *words]
    subprocess.run(command, env={**os.environ, **ONE_THREAD}, timeout=limit, check=True)


def run_alone(words: Sequence[str], threads: int, limit: float) -> None:
    """Runs a module in one process with `threads` threads per operation; arguments and errors as in `run`."""
    environment = {**os.environ, **ONE_THREAD, "TF_NUM_INTRAOP_THREADS": str(threads)}
    subprocess.run([sys.executable, "-m", *words], env=environment, timeout=limit, check=True)
