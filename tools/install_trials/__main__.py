"""Tries what README says about installing as a new user would: an ordinary user, an empty environment, a bare checkout.

    python3 -m tools.install_trials                                       # the last commit, with python3.11
    python3 -m tools.install_trials --python /usr/bin/python3.13 --revision 0416afa

If root starts it, the commands run as the user `nobody`. Each Python gets a temporary folder with a space in its name,
a home that holds nothing, and the files of the commit. Packages come from where pip takes them on this machine.
HVD_SPARSE_CACHE is the user's, too: where it has a wheel of Horovod that fits, Horovod is not built again. It takes
half an hour for each Python, most of it for TensorFlow, Horovod's build and our own, three times. Prints what became of
each trial; the status is 1 if one failed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.install_trials.trials import TRIALS, Place
from tools.install_trials.user import CommandError, User

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Runs all trials on each Python; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", help="an interpreter; may be repeated (default: python3.11)")
    parser.add_argument("--revision", default="HEAD", help="the commit (default: %(default)s)")
    options = parser.parse_args()
    failed = 0
    for python in options.python or ["python3.11"]:
        found = shutil.which(python)
        if found is None:
            parser.error(f"{python} was not found.")
        failed += _tried(Path(found), options.revision)
    return min(failed, 1)


def _tried(python: Path, revision: str) -> int:
    """Runs the trials with a Python; returns how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="install trials ") as folder:
        place = _lay_out(Path(folder), python, revision)
        if not place.user.can_run(python):
            print(f"  FAILED  the user cannot run {python}: name another with --python", flush=True)
            return 1
        print(f"{revision} with {place.run(python, '-V').strip()}", flush=True)
        for trial in TRIALS:
            name = trial.__name__.replace("_", " ")
            try:
                trial(place)
            except (AssertionError, CommandError, ValueError) as error:
                failed += 1
                print(f"  FAILED  {name}\n{error}", flush=True)
            else:
                print(f"  ok      {name}", flush=True)
    return failed


def _lay_out(folder: Path, python: Path, revision: str) -> Place:
    """Makes a home with a checkout of the commit."""
    sources, elsewhere = folder / "sources", folder / "elsewhere"
    sources.mkdir()
    elsewhere.mkdir()
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", sources], input=archive, check=True)
    return Place(User(folder), python, sources, folder / "environment", elsewhere)


if __name__ == "__main__":
    sys.exit(main())
