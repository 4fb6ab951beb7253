"""Two jobs that save their checkpoints into one directory: the second one is refused, a restart never is."""

import pytest

from tests.faults.job import running


def begun(job, ranks=2):
    for rank in range(ranks):
        job.wait_for(f"began.rank{rank}")


@pytest.mark.parametrize("recipe", ["hitopk", pytest.param("servers", marks=pytest.mark.thorough)])
def test_a_second_job_in_the_directory_is_refused_on_every_rank_and_the_first_goes_on(tmp_path, recipe):
    first, second, saved = (tmp_path / name for name in ("first", "second", "saved"))
    first.mkdir()
    second.mkdir()
    arguments = ["--recipe", recipe, "--checkpoints", str(saved), "--steps"]
    with running(first, 2, *arguments, "2000", nodes=2) as training:
        begun(training)
        with running(second, 2, *arguments, "20", nodes=2) as refused:
            assert refused.wait(range(2), 300.0) == [1, 1], refused.outputs()
            for rank in range(2):
                assert f"Another job saves its checkpoints in {saved}" in refused.end(rank)["text"]
        assert training.wait(range(2), 300.0) == [0, 0], training.outputs()


@pytest.mark.thorough
def test_control_a_job_that_was_killed_is_started_again_at_once(tmp_path):
    first, second, saved = (tmp_path / name for name in ("first", "second", "saved"))
    first.mkdir()
    second.mkdir()
    arguments = ["--recipe", "hitopk", "--checkpoints", str(saved), "--steps"]
    with running(first, 2, *arguments, "100000", nodes=2) as training:
        begun(training)
    with running(second, 2, *arguments, "20", nodes=2) as again:
        assert again.wait(range(2), 300.0) == [0, 0], again.outputs()
