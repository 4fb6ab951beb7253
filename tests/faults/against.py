"""Runs the tests of this folder against another commit, where each of them must fail, except controls.

    .venv/bin/python -m tests.faults.against 8795051

The commit is checked out into a temporary folder and its native libraries are built there; the tests of this checkout,
and the cluster in a box that some need, replace its own. For faults that patches of Horovod mend, --horovod names the
wheel of that commit. A control, whose name begins with "control_", has to pass
there: it uses the same names as the tests beside it, so these do not fail for want of a name. Each test that does not
fail, each control that does, each file without one, and each failure by a name that is missing there is listed, and the
command then exits with status 1.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Mapping

import pytest

from tests.faults.ranks import ALONE

ROOT = pathlib.Path(__file__).parents[2]
SHARED = "benchmarks/machines"  # all of benchmarks that tests of faults may import
# The last line of a traceback by a name that is new.
_LACKS_A_NAME = re.compile(
    r"^(?:E\s+)?(?:(?:Import|ModuleNotFound|Attribute)Error\b|TypeError: .*unexpected keyword argument)", re.MULTILINE
)


def lay_out(revision: str, folder: pathlib.Path) -> None:
    """Sets up the commit's packages, built, with the tests of this checkout and what they share with benchmarks."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    shutil.rmtree(folder / "tests")
    for ours in ("tests", SHARED):
        shutil.copytree(ROOT / ours, folder / ours, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    print(f"Building the native libraries of {revision} ...", flush=True)
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=folder, check=True)


def outcomes(report: pathlib.Path) -> dict[str, str]:
    """The outcome of each test by its name: "failed", "passed", "skipped", or "lacks a name"."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        ended = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        text = "".join(f"{child.get('message') or ''}\n{child.text or ''}" for child in case)
        lacks = ended == "failed" and _LACKS_A_NAME.search(text)
        found[f"{case.get('classname')}::{case.get('name')}"] = "lacks a name" if lacks else ended
    return found


def is_control(test: str) -> bool:
    """Whether a test passes with and without the faults."""
    return re.search(r"::test_control_|[\[.]control_", test) is not None


def file_of(test: str) -> str:
    """The file that a test comes from: of a function on real ranks, the file of that function."""
    actors = re.search(r"\[(\w+)\.", test)
    return f"actors_{actors[1]}" if actors else test.partition("::")[0]


def complaints(ended: Mapping[str, str]) -> list[str]:
    """What is wrong with the outcomes on a commit that has the faults."""
    wanted = {test: "passed" if is_control(test) else "failed" for test in ended}
    wrong = [f"{how}: {test}" for test, how in ended.items() if how != wanted[test]]
    controlled = {file_of(test) for test in ended if is_control(test)}
    return [*wrong, *(f"has no control: {each}" for each in sorted({file_of(test) for test in ended} - controlled))]


def main() -> int:
    parser = argparse.ArgumentParser(description="Shows that the tests of faults fail on a commit that has the faults.")
    parser.add_argument("revision", help="of this repository, as 8795051")
    parser.add_argument(
        "--horovod",
        type=pathlib.Path,
        metavar="WHEEL",
        help="the wheel that the commit's tools/horovod/build_wheel.sh builds (default: the installed Horovod)",
    )
    parser.add_argument("tests", nargs="*", default=["tests/faults"], help="files, or arguments of pytest")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults_") as name:
        folder = pathlib.Path(name)
        lay_out(options.revision, folder)
        packages = [name]
        if options.horovod is not None:
            packages.append(str(folder / "horovod_of_then"))
            zipfile.ZipFile(options.horovod).extractall(packages[-1])
        environment = {**os.environ, ALONE: "1", "PYTHONPATH": os.pathsep.join(packages)}
        report = folder / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", f"--junitxml={report}", *options.tests]
        status = subprocess.run(command, cwd=folder, env=environment).returncode
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            print(f"pytest ended with status {status} before all tests had run.", file=sys.stderr)
            return 1
        ended = outcomes(report)
    print(f"\nOf {len(ended)} tests {sum(each == 'failed' for each in ended.values())} fail on {options.revision}.")
    found = complaints(ended)
    for each in found:
        print(f"  {each}")
    return int(not ended or bool(found))


if __name__ == "__main__":
    sys.exit(main())
