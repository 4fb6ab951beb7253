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
    "ahead.control_dense_training_does_all_this",
    "ahead.spectral_normalization_lasts_between_exchanges",
    "ahead.spectral_normalization_lasts_in_a_compiled_step",
    "checkpoints.files_that_are_gone",
    "checkpoints.ranks_that_do_not_share_a_file_system",
    "checkpoints.single_bits_that_flip_in_any_file",
    "copies.a_deep_copy_of_the_optimizer_exchanges",
    "copies.a_model_compiled_by_the_others_config_exchanges",
    "copies.a_pickled_copy_exchanges_and_continues",
    "copies.control_one_model_checkpoint_goes_on_working",
    "copies.control_the_model_itself_exchanges",
    "copies.float8_scales_are_equal",
    "first.control_dense_is_plain_keras_on_one_node",
    "first.control_learning_rates_that_follow_averaged_metrics_are_the_same",
    "saved.a_stateful_layer_resumes",
    "saved.any_rank_loads_rows_and_broadcasts",
    "saved.control_a_dense_layer_resumes",
    "saved.moving_statistics_resume",
    "saved.rows_resume",
    "saved.sums_between_two_updates_resume",
    "saved.telemetry_of_two_optimizers",
    "saved.two_optimizers_resume",
    "seen.control_every_step_is_measured",
    "unequal.a_generator_ends_first_inside_a_node",
    "unequal.a_generator_ends_first_under_loss_scaling",
    "unequal.a_generator_of_float64_ends_first",
    "unequal.control_equal_numbers",
    "written.control_a_file_goes_on_in_a_new_model_as_the_training_that_was_not_stopped",
    "written.corrected_momentum_that_is_rolled_back_goes_on_from_the_file",
    "written.momentum_of_rows_follows_a_change_of_the_learning_rate",
    "written.rank_0_loads_and_broadcasts_in_mid_training",
    "written.recommended_that_is_rolled_back_goes_on_with_the_moments_of_the_file",
    "written.the_best_weights_are_restored_without_what_waited",
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
