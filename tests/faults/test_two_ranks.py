"""Bugs on two ranks: each function of the files actors_*.py as a test; `ranks.py` explains how to write one."""

import shutil
import subprocess

import pytest

from tests.faults import ranks
from tests.faults.checkpoints import FLIPS

STARTED = ("broadcast_callback", "checkpoints", "collectives", "tape", "order", "first", "saved")
STARTING = ("starting", "stalls", "unequal")  # these call hvd.init themselves
UNINITIALISED = ("uninitialised",)  # as the first thing that ranks do
TWO_NODES = ("ahead", "written", "copies", "seen")  # each rank is a node

SMALL_DISK = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1m none /mnt && exec "$0" "$@"']


def mounts():
    """Whether a file system can be mounted here."""
    return shutil.which("unshare") and not subprocess.run([*SMALL_DISK, "true"], capture_output=True).returncode


@pytest.fixture(scope="module")
def started():
    return ranks.Launched(
        *STARTED,
        count=2,
        limit=ranks.LIMIT + 20 * FLIPS,
        environment={"SMALL_DISK": "/mnt"},
        prefix=SMALL_DISK if mounts() else [],
    )


@pytest.fixture(scope="module")
def starting():
    environment = {ranks.STARTED: "0", "HVD_SPARSE_STALL_SECONDS": "2"}
    return ranks.Launched(*STARTING, count=2, environment=environment)


@pytest.fixture(scope="module")
def uninitialised():
    return ranks.Launched(*UNINITIALISED, count=2, environment={ranks.STARTED: "0"})


@pytest.fixture(scope="module")
def two_nodes():
    return ranks.Launched(*TWO_NODES, count=2, limit=2 * ranks.LIMIT, environment={"HVD_SPARSE_LOCAL_SIZE": "1"})


@pytest.mark.parametrize("name", ranks.names(*STARTED))
def test_started(name, started):
    if name.endswith("a_full_disk_is_an_error_on_all") and not mounts():
        pytest.skip("no file system can be mounted here")
    started.require(name)


@pytest.mark.parametrize("name", ranks.names(*STARTING))
def test_starting(name, starting):
    starting.require(name)


@pytest.mark.parametrize("name", ranks.names(*UNINITIALISED))
def test_uninitialised(name, uninitialised):
    uninitialised.require(name)


@pytest.mark.parametrize("name", ranks.names(*TWO_NODES))
def test_two_nodes(name, two_nodes):
    two_nodes.require(name)
