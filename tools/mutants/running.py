"""Runs some of the tests in a copy."""

from __future__ import annotations

import json
import pathlib
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from tools.mutants.copies import Copy

LIMIT = 3 * 3600.0  # seconds for a run whose length is unknown
TIERS = {"quick": "not thorough", "thorough": "thorough"}
PASSED, NOTHING_TO_RUN = 0, 5  # exit statuses of pytest


class Ran(NamedTuple):
    """How a run of tests ended.

    Attributes:
        status: exit status of pytest; None if it was killed for taking too long.
        seconds: seconds by file, for the tests that were run; None if pytest did not finish.
        failed: names of failed tests, or of files that could not be read.
        output: what was printed.
    """

    status: int | None
    seconds: dict[str, float] | None
    failed: list[str]
    output: str

    @property
    def seen(self) -> str:
        """What showed that something is wrong; empty if nothing did."""
        if self.status in (PASSED, NOTHING_TO_RUN):
            return ""
        if self.status is None:
            return "timeout"
        return self.failed[0] if self.failed else f"pytest ended with status {self.status}"


def run_tests(
    copy: Copy,
    tier: str,
    files: Sequence[str],
    limit: float,
    left_out: Sequence[str] = (),
    stop_at_first: bool = True,
) -> Ran:
    """Runs the tests of a tier in these files, in this order."""
    with tempfile.TemporaryDirectory(prefix="mutants_report_") as name:
        report = pathlib.Path(name, "report.json")
        options = ["-x"] if stop_at_first else []
        options += [f"--deselect={each}" for each in left_out]
        command = ["-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "mutants_plugin"]
        environment = {"MUTANTS_ORDER": json.dumps(list(files)), "MUTANTS_REPORT": str(report)}
        ended = copy.run([*command, "-m", TIERS[tier], *options, *files], limit, environment)
        if not report.exists():
            return Ran(ended.status, None, [], ended.output)
        told = json.loads(report.read_text())
        return Ran(ended.status, told["seconds"], told["failed"], ended.output)
