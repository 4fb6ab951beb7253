"""Ranks that start late, or not at all."""

import pytest

from tests.faults.job import running

LIMIT = 300.0
pytestmark = pytest.mark.thorough  # they wait for long


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_rank_that_fails_before_init_is_named_and_an_error_on_the_others(tmp_path, nodes):
    arguments = ["--before", "fail:1", "--recipe", "hitopk"]
    limits = {"HVD_SPARSE_START_TIMEOUT": "40"}
    with running(tmp_path, 4, *arguments, nodes=nodes, environment_of=lambda rank: limits) as job:
        assert job.wait(range(4), LIMIT) == [1] * 4, job.outputs()
        for rank in (0, 2, 3):
            end = job.end(rank)
            assert end["error"] == "RanksMissingError" and end["finally"], end
            assert end["text"].startswith("Rank 1 of 4 did not call hvd.init within 40 s of the others"), end
        named = [rank for rank in range(4) if "waiting for rank 1 of 4 to call hvd.init" in job.output(rank)]
        assert named == [0]


def test_a_rank_that_is_late_is_waited_for_and_the_job_is_as_fast_as_ever(tmp_path):
    """Process sets that can be added later, which such a job had, make small messages take three times as long."""
    arguments = ["--before", "sleep:3:45", "--recipe", "hitopk", "--steps", "20"]
    with running(tmp_path, 4, *arguments, nodes=2) as job:
        assert job.wait(range(4), LIMIT) == [0] * 4, job.outputs()
        assert "waiting for rank 3 of 4 to call hvd.init, for 30 s so far" in job.output(0)
        assert all("process sets can be added: False" in job.output(rank) for rank in range(4)), job.outputs()


def test_ranks_that_cannot_connect_get_an_error(tmp_path):
    arguments = ["--before", "vanish:2", "--recipe", "hitopk"]
    limits = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "5"}
    with running(tmp_path, 4, *arguments, nodes=2, environment_of=lambda rank: limits) as job:
        assert job.wait([0, 1, 3], LIMIT) == [1] * 3, job.outputs()
        for rank in (0, 1, 3):
            assert job.end(rank)["text"].startswith("Horovod could not connect all ranks"), job.end(rank)


def test_control_a_rank_that_is_late_by_seconds_is_waited_for(tmp_path):
    arguments = ["--before", "sleep:3:5", "--recipe", "hitopk", "--steps", "20"]
    with running(tmp_path, 4, *arguments, nodes=2) as job:
        assert job.wait(range(4), LIMIT) == [0] * 4, job.outputs()
