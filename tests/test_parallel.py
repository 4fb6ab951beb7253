"""Runs every multi-rank case as a test; `tests/parallel/run.py` explains how to write one."""

import pytest

from tests.parallel import cases, launch, networks
from tests.parallel.launch import SECONDS

CASES = cases.load(cases.suites())


@pytest.fixture(scope="session")
def results():
    return launch.Results()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{case.ranks}-{case.name}", marks=[] if case.quick else pytest.mark.thorough)
        for case in CASES
    ],
)
def test_case(case, results, request):
    if case.launch and case.launch.names and networks.unavailable():
        pytest.skip(networks.unavailable())
    if not results.has(case):
        results.launch(_same_launch(case, request.session.items))
    request.node.user_properties.append((SECONDS, results.seconds(case)))
    failure = results.failure(case)
    assert failure is None, failure


def _same_launch(case, items):
    """The selected cases that can share a launch with this one."""
    if case.launch:
        return [case]
    selected = [item.callspec.params["case"] for item in items if item.function is test_case]
    return [other for other in selected if other.group == case.group]
