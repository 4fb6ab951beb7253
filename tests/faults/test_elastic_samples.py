"""Real elastic jobs whose ranks read through datacache: each sample is used once an epoch, whoever dies or comes."""

import collections
import signal

import numpy as np
import pytest

from datacache.order import permutation
from tests.faults.elastic_job import running
from tests.faults.elastic_samples import COUNT

BUSY = 6.0  # how many times longer all may take on a machine that runs other tests
EPOCHS = 6
FIRST, SECOND, THIRD, FOURTH = "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"  # hosts
SCRIPT = "tests.faults.elastic_samples"


def steps_of(job, size, count):
    """Waits until this many ranks have made so many steps together."""
    job.wait_for(
        lambda: sum(each["size"] == size and each["rank"] == size - 1 for each in job.events("step")) >= count, 120
    )


def total(epoch, position):
    """The number of samples before a position."""
    return epoch * COUNT + position


def history(job):
    """The samples of each step of the history that counts, those of all ranks in their order."""
    ran = collections.defaultdict(lambda: collections.defaultdict(dict))  # where training went on, step, rank
    for each in job.events("step"):
        ran[total(*each["begun"]), each["size"]][total(each["epoch"], each["position"])][each["rank"]] = each["samples"]
    ends = [begun for begun, _ in ran][1:] + [float("inf")]
    steps = []
    for (_, size), end in zip(list(ran), ends, strict=True):
        for position, ranks in sorted(ran[_, size].items()):
            if position < end:  # others were begun, and undone if they were done
                assert sorted(ranks) == list(range(size)), (position, ranks)
                steps.append(sum((ranks[rank] for rank in range(size)), []))
    return steps, len(ran)


def ended_right(job, ranks):
    """Checks that the job has ended in order, that each sample was used in its turn, and that no other was."""
    assert job.wait(BUSY * 60) == 0, job.output()
    steps, generations = history(job)
    everything = np.concatenate([permutation(COUNT, 0, epoch) for epoch in range(EPOCHS)])
    used = np.concatenate(steps)
    np.testing.assert_array_equal(used, everything[: len(used)])
    ends = job.events("trained")
    assert len(ends) == ranks and {each["size"] for each in ends} == {ranks}, job.output()
    assert {total(each["epoch"], each["position"]) for each in ends} == {len(used)}
    assert 0 <= len(everything) - len(used) < ranks
    for each in ends:  # what the models say, too
        np.testing.assert_allclose(each["counts"], np.bincount(used, minlength=COUNT), atol=1e-3)
    assert all(-each["size"] < each["position"] <= 0 for each in job.events("epoch"))
    return generations


@pytest.mark.thorough
def test_after_a_death_and_a_join_each_sample_is_used_once_an_epoch(tmp_path):
    with running(tmp_path, {FIRST: 1, SECOND: 1, THIRD: 1}, "--pace", "0.2", script=SCRIPT) as job:
        steps_of(job, 3, 12)
        job.signal(SECOND, signal.SIGKILL)
        steps_of(job, 2, 10)
        job.set_hosts({FIRST: 1, THIRD: 1, FOURTH: 1})
        steps_of(job, 3, 20)
        assert ended_right(job, 3) == 3
        assert "samples for 3 ranks; they go into epoch" in job.output()
        stayed = {each["pid"] for each in job.events("trained")} & {each["pid"] for each in job.events("trains")[:3]}
        assert len(stayed) == 2
        reads = [each["index"] for each in job.events("read")]
        assert set(reads) == set(range(COUNT)) and len(reads) <= COUNT + 3  # what is in memory stays there


@pytest.mark.thorough
def test_hosts_with_unequal_numbers_of_ranks_divide_the_samples(tmp_path):
    with running(tmp_path, {FIRST: 2}, "--pace", "0.2", script=SCRIPT) as job:
        steps_of(job, 2, 5)
        job.set_hosts({FIRST: 2, SECOND: 1})
        steps_of(job, 3, 5)
        assert ended_right(job, 3) == 2
