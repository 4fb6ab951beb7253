"""Bugs in starting on a host whose own name has no address: its processes ended by segmentation faults and aborts."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.faults.ranks import LIMIT
from tests.parallel.launch import QUIET, ROOT, horovodrun

RENAMED = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']
START = """
import hvd_sparse as hvd
try:
    hvd.init()
except ValueError as error:
    print("refused:", error)
else:
    print("started", hvd.size())
    hvd.shutdown()
"""


def can_be_renamed():
    return shutil.which("unshare") and not subprocess.run([*RENAMED, "name", "true"], capture_output=True).returncode


@pytest.fixture
def started():
    """Starts two ranks on a host of a name; returns the launcher's exit status and what was printed."""
    if not can_be_renamed():
        pytest.skip("hosts cannot be given another name here")

    def start(name):
        ended = horovodrun(2, ["-c", START], LIMIT, prefix=[*RENAMED, name])
        return ended.status, ended.output

    return start


def test_every_rank_says_which_name_does_not_resolve(started):
    status, output = started("no-address.invalid")
    assert status == 0, output
    assert output.count("refused: A host's own name does not resolve there (no-address.invalid)") == 2, output


def test_a_single_process_says_it_too(started):
    command = [*RENAMED, "no-address.invalid", sys.executable, "-c", START]
    environment = {**{name: each for name, each in os.environ.items() if not name.startswith("HOROVOD_")}, **QUIET}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0 and "does not resolve there (no-address.invalid)" in ended.stdout, ended


def test_control_ranks_start_where_the_name_resolves(started):
    status, output = started("localhost")
    assert status == 0 and output.count("started 2") == 2, output
