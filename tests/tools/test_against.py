"""The command that runs tests of faults against a commit that has them: what it accepts."""

import re

import pytest

from tests.faults import against

ENDED = {
    "tests.faults.test_a::test_control_what_works": "passed",
    "tests.faults.test_a::test_a_fault": "failed",
    "tests.faults.test_two_ranks::test_nodes[written.control_what_works]": "passed",
    "tests.faults.test_two_ranks::test_nodes[written.a_fault]": "failed",
}


def test_of_benchmarks_tests_of_faults_import_only_what_is_brought_to_the_commit():
    shared = against.SHARED.replace("/", ".")
    for file in (against.ROOT / "tests" / "faults").glob("*.py"):
        found = re.findall(r"^(?:from|import) (benchmarks\S*)", file.read_text(), re.MULTILINE)
        assert all(each == shared or each.startswith(f"{shared}.") for each in found), f"{file}: {found}"


def test_faults_fail_and_controls_pass():
    assert against.complaints(ENDED) == []


@pytest.mark.parametrize(
    ("test", "how", "complaint"),
    [
        ("tests.faults.test_a::test_a_fault", "passed", "passed: tests.faults.test_a::test_a_fault"),
        ("tests.faults.test_a::test_a_fault", "lacks a name", "lacks a name: tests.faults.test_a::test_a_fault"),
        ("tests.faults.test_a::test_control_what_works", "failed", "failed: tests.faults.test_a::test_control"),
        ("tests.faults.test_b::test_a_fault", "failed", "has no control: tests.faults.test_b"),
        ("tests.faults.test_two_ranks::test_nodes[saved.a_fault]", "failed", "has no control: actors_saved"),
    ],
)
def test_what_shows_nothing_is_told(test, how, complaint):
    (told,) = against.complaints({**ENDED, test: how})
    assert told.startswith(complaint)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("E   AttributeError: module 'hvd_sparse' has no attribute 'x'", "lacks a name"),
        ("E   TypeError: f() got an unexpected keyword argument 'version'", "lacks a name"),
        ("ModuleNotFoundError: No module named 'hvd_sparse.optimizers'", "lacks a name"),
        ("E   TypeError: only length-1 arrays can be converted", "failed"),
        ("E   AssertionError: an AttributeError was expected", "failed"),
    ],
)
def test_a_failure_by_a_missing_name_is_told_apart(tmp_path, text, outcome):
    report = tmp_path / "report.xml"
    report.write_text(f'<r><testcase classname="a" name="b"><failure message="">{text}</failure></testcase></r>')
    assert against.outcomes(report) == {"a::b": outcome}
