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
# These take long; in `make test` the grid has shorter ones of their kind.
THOROUGH = (
    "checkpoints.files_that_are_gone",
    "checkpoints.ranks_that_do_not_share_a_file_system",
    "checkpoints.single_bits_that_flip_in_any_file",
    "saved.a_stateful_layer_resumes",
    "saved.control_a_dense_layer_resumes",
    "saved.moving_statistics_resume",
    "saved.rows_resume",
    "saved.sums_between_two_updates_resume",
    "saved.two_optimizers_resume",
    "unequal.control_equal_numbers",
    "written.control_a_file_goes_on_in_a_new_model_as_the_training_that_was_not_stopped",
    "written.recommended_that_is_rolled_back_goes_on_with_the_moments_of_the_file",
    "written.updates_that_are_rolled_back_go_on_with_the_moments_of_the_file",
)

SMALL_DISK = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1m none /mnt && exec "$0" "$@"']


def named(*files):
    """The functions of files as parameters, in their tiers."""
    for name in ranks.names(*files):
        yield pytest.param(name, marks=[pytest.mark.thorough] if name in THOROUGH else [])


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
        thorough=THOROUGH,
    )


@pytest.fixture(scope="module")
def starting():
    environment = {ranks.STARTED: "0", "HVD_SPARSE_STALL_SECONDS": "2"}
    return ranks.Launched(*STARTING, count=2, environment=environment, thorough=THOROUGH)


@pytest.fixture(scope="module")
def uninitialised():
    return ranks.Launched(*UNINITIALISED, count=2, environment={ranks.STARTED: "0"})


@pytest.fixture(scope="module")
def two_nodes():
    environment = {"HVD_SPARSE_LOCAL_SIZE": "1"}
    return ranks.Launched(*TWO_NODES, count=2, limit=2 * ranks.LIMIT, environment=environment, thorough=THOROUGH)


@pytest.mark.parametrize("name", named(*STARTED))
def test_started(name, started):
    if name.endswith("a_full_disk_is_an_error_on_all") and not mounts():
        pytest.skip("no file system can be mounted here")
    started.require(name)


@pytest.mark.parametrize("name", named(*STARTING))
def test_starting(name, starting):
    starting.require(name)


@pytest.mark.parametrize("name", named(*UNINITIALISED))
def test_uninitialised(name, uninitialised):
    uninitialised.require(name)


@pytest.mark.parametrize("name", named(*TWO_NODES))
def test_two_nodes(name, two_nodes):
    two_nodes.require(name)
