"""Tries what the docs say in a clean Debian: from nothing to a training on two hosts that was killed and resumed.

    python3 -m tools.install_trials.chroots                          # the last commit, in Debian 12 and 13
    python3 -m tools.install_trials.chroots --suite trixie --revision HEAD

Each Debian is made by debootstrap in a temporary folder, and root does there what an administrator does: the packages
that docs/start.md names, and sshd on two hosts, which are network namespaces. All else is done by an ordinary user,
with the lines of the docs as they stand. Prints how long each step took; the status is 1 if one failed. Needs root.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tools.install_trials.hosts import two_hosts
from tools.install_trials.systems import HOME, USER, Debian, Host, unavailable
from tools.install_trials.user import CommandError

ROOT = Path(__file__).resolve().parents[2]
SOURCES = f"{HOME}/hvd_sparse"
SUITES = ("bookworm", "trixie")
PAGE = "docs/start.md"
SEVERAL = "Several hosts, and a training that was stopped"
KILLED_IN = "Epoch 4/"  # three checkpoints are written by then


def main() -> int:
    """Tries each release; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", action="append", help=f"may be repeated (default: {' and '.join(SUITES)})")
    parser.add_argument("--revision", default="HEAD", help="the commit (default: %(default)s)")
    parser.add_argument("--originals", type=Path, help="has a folder SUITE that debootstrap has filled, to be copied")
    parser.add_argument("--folder", help="where the Debian is made (default: a temporary folder)")
    options = parser.parse_args()
    reason = unavailable()
    if reason is not None:
        sys.exit(reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failed = False
    for suite in options.suite or SUITES:
        with tempfile.TemporaryDirectory(prefix="debian-", dir=options.folder) as folder:
            try:
                original = options.originals and options.originals / suite
                _try(Debian(Path(folder) / suite, suite, original), options.revision)
            except (AssertionError, CommandError) as error:
                print(f"  FAILED  {error}", flush=True)
                failed = True
    return int(failed)


def _try(system: Debian, revision: str) -> None:
    print(f"{revision} in Debian's {system.suite}", flush=True)
    with ExitStack() as cleanup:
        with step("debootstrap"):
            debian = cleanup.enter_context(system)
        began = time.monotonic()
        _install(debian, revision)
        hosts = cleanup.enter_context(two_hosts(debian))
        _train(debian, hosts[0], revision)
        print(f"  {time.monotonic() - began:5.0f} s  from nothing to a training that was resumed", flush=True)


def _install(debian: Debian, revision: str) -> None:
    packages, lines = documented(revision, "Install")[:2]
    more, _ = documented(revision, SEVERAL)
    with step("packages, as root"):
        debian.run("apt-get update -qq", "root", "/")
        for line in (packages, more):
            options = "install -qq --yes --no-install-recommends"
            debian.run(line.replace("sudo ", "").replace("install", options), "root", "/")
    with step("the checkout"):
        archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
        (debian.root / SOURCES[1:]).mkdir()
        subprocess.run(["tar", "-x", "-C", debian.root / SOURCES[1:]], input=archive, check=True)
        debian.run(f"chown -R {USER}: {SOURCES}", "root", "/")
    for line in lines.splitlines():
        with step(line):
            debian.run(line, folder=SOURCES)
    print("          " + debian.run("ENV/bin/python -V", folder=SOURCES).strip(), flush=True)


def _train(debian: Debian, host: Host, revision: str) -> None:
    _, lines = documented(revision, SEVERAL)
    with step("training on two hosts, in which a rank is killed"):
        status, printed = _killed(debian, host, lines)
        require(status != 0 and KILLED_IN in printed, f"the job did not end with its rank ({status}):\n{printed}")
    with step("the same command again"):
        printed = host.run(lines, folder=SOURCES)
        require("training resumes from" in printed and "test accuracy" in printed, printed)
    for line in printed.splitlines():
        if "training resumes from" in line or "test accuracy" in line:
            print(f"          {line}", flush=True)


def _killed(debian: Debian, host: Host, lines: str) -> tuple[int, str]:
    """Runs a training and kills one of its ranks in mid-epoch; returns the status and what was printed."""
    printed: list[str] = []

    def seen(line: str) -> None:
        printed.append(line)
        if KILLED_IN in line:
            os.kill(_a_rank(debian), signal.SIGKILL)

    status = host.watch(lines, seen, folder=SOURCES)
    return status, "".join(printed)


def _a_rank(debian: Debian) -> int:
    """The process of a rank: the newest that runs the script itself, not a shell or a launcher with its name."""
    running = debian.processes()
    ranks = [number for number, words in running.items() if re.match(r"\S*python\S* examples/keras_digits.py", words)]
    require(bool(ranks), f"no rank was found among {sorted(running.values())}")
    return max(ranks)


def documented(revision: str, heading: str) -> list[str]:
    """The blocks of commands under a heading of docs/start.md of a commit, in their order."""
    shown = ["git", "show", f"{revision}:{PAGE}"]
    return blocks(subprocess.run(shown, cwd=ROOT, check=True, capture_output=True, text=True).stdout, heading)


def blocks(text: str, heading: str) -> list[str]:
    """The blocks of commands under a heading of a page, in their order."""
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    require(bool(found), f"there are no commands under {heading!r}")
    return found


@contextmanager
def step(name: str) -> Iterator[None]:
    """Prints how long a step took."""
    began = time.monotonic()
    yield
    print(f"  {time.monotonic() - began:5.0f} s  {name.strip()}", flush=True)


def require(holds: bool, otherwise: str) -> None:
    """Raises an AssertionError with the end of a text if something does not hold."""
    if not holds:
        raise AssertionError(otherwise[-3000:])


if __name__ == "__main__":
    sys.exit(main())
