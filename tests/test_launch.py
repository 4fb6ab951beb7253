"""The harness detects failures, hangs and deaths of ranks, and then continues with the other cases."""

import pytest

from tests.parallel import cases, launch

pytestmark = pytest.mark.thorough

CASES = {case.name.removeprefix("broken."): case for case in cases.load(["broken"])}


@pytest.fixture(scope="module")
def results():
    found = launch.Results()
    found.launch([case for case in CASES.values() if case.launch is None])
    for case in CASES.values():
        if case.launch:
            found.launch([case])
    return found


@pytest.mark.parametrize(
    "name, expected",
    [
        (
            "fails_on_one_rank_while_the_other_waits",
            [
                "rank 0: failed",
                "HANG: waiting for rank 1",
                'topology.world().allreduce(tf.constant(0), "sum", "waits")',
                "rank 1: failed",
                "the reason that rank 1 gives",
            ],
        ),
        ("takes_too_long", ["HANG: still running after 3 s", "time.sleep(60)"]),
        ("fails_on_one_rank_after_the_last_collective", ["rank 1: failed", "rank 1 saw something else"]),
        ("dies_unexpectedly", ["rank 1: ended in the middle of the case without a word", "Exit code: 9"]),
        ("none_of_two_tells", ["rank 0: ended in the middle of the case", "rank 1: ended in the middle of the case"]),
    ],
)
def test_failures_are_told(results, name, expected):
    failure = results.failure(CASES[name])
    for text in expected:
        assert text in failure


def test_only_the_rank_that_failed_is_blamed(results):
    assert "rank 0" not in results.failure(CASES["fails_on_one_rank_after_the_last_collective"])


@pytest.mark.parametrize("name", ["passes", "dies_and_is_missed", "one_of_two_tells"])
def test_what_should_pass_passes(results, name):
    assert results.failure(CASES[name]) is None
