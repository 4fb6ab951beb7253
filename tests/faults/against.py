"""Runs the tests of this folder against another commit, where each of them must fail.

    .venv/bin/python -m tests.faults.against 8795051

The commit is checked out into a temporary folder and its native libraries are built there; the tests of this checkout
replace its own. Each test that does not fail is listed, and the command then exits with status 1.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

import pytest

from tests.faults.ranks import ALONE

ROOT = pathlib.Path(__file__).parents[2]


def lay_out(revision: str, folder: pathlib.Path) -> None:
    """Sets up the commit's packages, built, with the tests of this checkout."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    shutil.rmtree(folder / "tests")
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    print(f"Building the native libraries of {revision} ...", flush=True)
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=folder, check=True)


def outcomes(report: pathlib.Path) -> dict[str, str]:
    """The outcome of each test by its name: "failed", "passed" or "skipped"."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        ended = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = ended
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Shows that the tests of faults fail on a commit that has the faults.")
    parser.add_argument("revision", help="of this repository, as 8795051")
    parser.add_argument("tests", nargs="*", default=["tests/faults"], help="files, or arguments of pytest")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults_") as name:
        folder = pathlib.Path(name)
        lay_out(options.revision, folder)
        environment = {**os.environ, ALONE: "1", "PYTHONPATH": name}
        report = folder / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", f"--junitxml={report}", *options.tests]
        status = subprocess.run(command, cwd=folder, env=environment).returncode
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            print(f"pytest ended with status {status} before all tests had run.", file=sys.stderr)
            return 1
        ended = outcomes(report)
    print(f"\nOf {len(ended)} tests {sum(each == 'failed' for each in ended.values())} fail on {options.revision}.")
    for test, how in ended.items():
        if how != "failed":
            print(f"  {how}: {test}")
    return int(not ended or any(how != "failed" for how in ended.values()))


if __name__ == "__main__":
    sys.exit(main())
