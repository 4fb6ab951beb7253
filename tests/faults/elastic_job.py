"""A real elastic job under horovodrun whose ranks run a script of the tests."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Mapping

from benchmarks.machines import loopback_job
from benchmarks.machines.loopback_job import LoopbackJob
from tests.parallel.launch import QUIET

RANK = "tests.faults.elastic_rank"


@contextlib.contextmanager
def running(
    folder: pathlib.Path,
    hosts: Mapping[str, int],
    *arguments: str,
    least: int = 1,
    environment: Mapping[str, str] = {},
    script: str = RANK,
) -> Iterator[LoopbackJob]:
    """Context with a job; all its processes are killed at the end.

    Args:
        folder: an empty one.
        hosts: loopback addresses, with their slots.
        arguments: those of the script after the folder.
        least: the fewest ranks that train.
        environment: more variables of the environment.
        script: the module that each rank runs.
    """
    with loopback_job.running(folder, script, hosts, least, arguments, {**QUIET, **environment}) as job:
        yield job
