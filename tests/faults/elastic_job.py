"""A real elastic job under horovodrun whose ranks run `elastic_rank`."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Mapping

from benchmarks.machines import loopback_job
from benchmarks.machines.loopback_job import LoopbackJob
from tests.parallel.launch import QUIET


@contextlib.contextmanager
def running(
    folder: pathlib.Path, hosts: Mapping[str, int], *arguments: str, least: int = 1, environment: Mapping[str, str] = {}
) -> Iterator[LoopbackJob]:
    """Context with a job; all its processes are killed at the end.

    Args:
        folder: an empty one.
        hosts: loopback addresses, with their slots.
        arguments: those of `tests.faults.elastic_rank` after the folder.
        least: the fewest ranks that train.
        environment: more variables of the environment.
    """
    all_variables = {**QUIET, **environment}
    with loopback_job.running(folder, "tests.faults.elastic_rank", hosts, least, arguments, all_variables) as job:
        yield job
