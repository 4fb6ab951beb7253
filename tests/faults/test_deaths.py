"""A rank that dies, stands still or fails: the others get one error that names it, in moments, and end in order.

The ranks are started by `job.py`, which ends none of them; horovodrun would end the others after a rank has failed.
"""

import signal

import pytest

from tests.faults.job import running

NOTICED = 15.0  # seconds after a death, which is noticed in moments, plus the time that a busy machine takes
GLOO = 10  # seconds that ranks wait for one that stands still, here; 30 by default
PATIENCE = {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO)}
BUSY = 6.0  # how many times longer all may take on a machine that runs other tests
GRIDS = {"2x2": (4, 2), "2x1": (2, 2), "1x2": (2, 1)}  # ranks, nodes


def grids(*quick):
    """All grids, in their tiers."""
    for name, grid in GRIDS.items():
        yield pytest.param(*grid, id=name, marks=[] if name in quick else [pytest.mark.thorough])


def cases():
    """Recipes and grids, in their tiers."""
    for recipe in ("dense", "hitopk", "recommended"):
        for name, grid in GRIDS.items():
            marks = [] if (recipe, name) in [("hitopk", "2x2"), ("dense", "1x2")] else [pytest.mark.thorough]
            yield pytest.param(recipe, *grid, id=f"{recipe}-{name}", marks=marks)


def survivors(job, ranks, victim, limit):
    """The ends of all other ranks, which have ended by an exception within the limit and have run their `finally`."""
    struck, others = job.struck(), [rank for rank in range(ranks) if rank != victim]
    statuses = job.wait(others, BUSY * limit)
    assert statuses == [1] * len(others), f"{statuses}; {job.outputs()}"
    ends = {rank: job.end(rank) for rank in others}
    assert all(end["finally"] for end in ends.values())
    return ends, max(end["at"] for end in ends.values()) - struck


@pytest.mark.parametrize("recipe, ranks, nodes", cases())
def test_the_death_of_a_rank_is_an_error_on_the_others_that_names_it(tmp_path, recipe, ranks, nodes):
    victim = ranks - 1
    with running(tmp_path, ranks, "--harm", "kill", "--rank", str(victim), "--recipe", recipe, nodes=nodes) as job:
        ends, seconds = survivors(job, ranks, victim, NOTICED)
    for rank, end in ends.items():
        assert end["error"] == "RankLostError", end
        assert end["text"].startswith(f"Rank {victim} on host localhost is gone: its process was killed"), end
        assert f"Rank {rank} noticed it at" in end["text"] and "in step 8" in end["text"]
        assert "mortal_rank.py line" in end["text"] and "last checkpoint" in end["text"]
    assert seconds < BUSY * NOTICED


def test_in_a_loop_of_ones_own_the_rank_is_named_below_the_traceback(tmp_path):
    with running(tmp_path, 4, "--harm", "kill", "--rank", "2", "--recipe", "tape", nodes=2) as job:
        survivors(job, 4, 2, NOTICED)
        for rank in (0, 1, 3):
            last = job.output(rank).splitlines()[-1]
            assert last.startswith("hvd_sparse: Rank 2 on host localhost is gone"), job.output(rank)


@pytest.mark.parametrize("ranks, nodes", grids("2x2"))
def test_an_exception_of_one_rank_is_told_to_the_others(tmp_path, ranks, nodes):
    with running(tmp_path, ranks, "--harm", "raise", "--rank", "0", "--recipe", "hitopk", nodes=nodes) as job:
        ends, _ = survivors(job, ranks, 0, NOTICED)
        assert job.end(0)["error"] == "OSError"
    for end in ends.values():
        assert end["text"].startswith("Rank 0 on host localhost has ended with OSError: the disk is full. "), end
        assert "Look at the output of rank 0;" in end["text"]


@pytest.mark.parametrize("ranks, nodes", grids("2x2"))
def test_a_rank_that_stands_still_is_an_error_on_the_others(tmp_path, ranks, nodes):
    arguments, limit = ["--harm", "stop", "--rank", "1", "--recipe", "hitopk"], GLOO + NOTICED
    with running(tmp_path, ranks, *arguments, nodes=nodes, environment_of=lambda rank: PATIENCE) as job:
        ends, seconds = survivors(job, ranks, 1, limit)
        job.signal(1, signal.SIGCONT)  # it finds that the others have given up
        job.wait([1], BUSY * limit)
        assert job.end(1)["error"] == "RankLostError", job.outputs()
    for end in ends.values():
        assert end["error"] == "RankLostError", end
        assert end["text"].startswith("Rank 1 on host localhost stands still: its process was stopped"), end
    assert GLOO * 0.9 < seconds < BUSY * limit


@pytest.mark.thorough
def test_control_a_rank_that_stands_still_for_moments_goes_on(tmp_path):
    arguments = ["--harm", "stop", "--rank", "1", "--recipe", "hitopk", "--steps", "30"]
    with running(tmp_path, 4, *arguments, nodes=2) as job:
        job.struck()
        assert job.wait([0, 2, 3], 4.0) == [None] * 3
        job.signal(1, signal.SIGCONT)
        assert job.wait(range(4), 300.0) == [0] * 4, job.outputs()
        assert len({(tmp_path / f"done.rank{rank}").read_text() for rank in range(4)}) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", ["servers", "datagrams"])
def test_what_goes_on_without_a_rank_goes_on_without_it_on_several_nodes(tmp_path, recipe):
    arguments = ["--harm", "kill", "--rank", "3", "--recipe", recipe, "--steps", "200"]
    with running(tmp_path, 4, *arguments, nodes=2) as job:
        job.struck()
        assert job.wait(range(3), 300.0) == [0] * 3, job.outputs()
