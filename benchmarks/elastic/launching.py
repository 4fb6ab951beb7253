"""Jobs of ranks that measure by themselves and end."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.machines import loopback_job
from benchmarks.machines.local_ranks import ONE_THREAD

HOSTS = ("127.0.1.2", "127.0.1.3")


def launch(module: str, slots: int, words: Sequence[str], elastic: bool, limit: float) -> list[dict[str, Any]]:
    """Runs a module on both hosts to its end; returns the event "measured" of each rank, by rank.

    Args:
        module: what each rank runs.
        slots: ranks on each host.
        words: options of the module.
        elastic: whether the job is elastic; otherwise its ranks are fixed.
        limit: seconds.

    Raises:
        ValueError: if the job fails, or if figures of a rank are missing; with all output.
        AssertionError: if it has not ended within the limit.
    """
    hosts = dict.fromkeys(HOSTS, slots)
    ranks = sum(hosts.values())
    with tempfile.TemporaryDirectory(prefix="elastic_") as name:
        least = ranks if elastic else None
        with loopback_job.running(pathlib.Path(name), module, hosts, least, words, ONE_THREAD) as job:
            status = job.wait(limit)
            found = sorted(job.events("measured"), key=lambda each: each["rank"])
            if status != 0 or len(found) != ranks:
                raise ValueError(f"Expected figures of all ranks, got {len(found)} and status {status}; {job.output()}")
            return found
