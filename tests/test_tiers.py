"""The tiers: each test is in exactly one, the quick one runs each recipe on real ranks, and the budget is checked."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import pytest

from tests import budget, conftest, shares
from tests.members import AGGREGATORS
from tests.parallel import cases

CASES = cases.load(cases.suites())
HOOKS = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_generate_tests",
    "pytest_runtest_call",
    "pytest_runtest_setup",
]
MADE_UP = """
import pytest
from hypothesis import given, strategies as st

def test_quick():
    pass

@pytest.mark.thorough
def test_thorough():
    pass

@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_sizes(size):
    pass

@given(st.integers())
def test_law(number):
    with open("drawn", "a") as drawn:
        drawn.write(".")

@pytest.mark.thorough
@given(st.integers())
def test_thorough_law(number):
    pass
"""


def collected(folder, *words):
    """The names of the sample tests that a run executes, and the number of examples drawn by their properties."""
    (folder / "drawn").write_text("")
    (folder / "test_made_up.py").write_text(MADE_UP)
    settings = folder / "conftest.py"
    settings.write_text(f"from tests.conftest import {', '.join(HOOKS)}\n")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = thorough\n")
    command = [sys.executable, "-m", "pytest", "-v", "--strict-markers", "-p", "no:cacheprovider", "--rootdir", folder]
    ended = subprocess.run(
        [*command, *words, "test_made_up.py"],
        cwd=folder,
        env={**conftest.os.environ, "PYTHONPATH": str(conftest.ROOT)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    names = {line.split()[0].partition("::")[2] for line in ended.stdout.splitlines() if " PASSED" in line}
    return names, len((folder / "drawn").read_text())


def test_each_test_is_in_one_tier(tmp_path):
    everything, _ = collected(tmp_path)
    quick, few = collected(tmp_path, "-m", "not thorough")
    rest, many = collected(tmp_path, "-m", "thorough")
    assert quick == {"test_quick", "test_sizes[1]", "test_law[few]"}
    assert rest == {"test_thorough", "test_sizes[2]", "test_law[all]", "test_thorough_law[all]"}
    assert everything == (quick | rest) - {"test_law[few]"} and not quick & rest
    assert (few, many) == (3, 12)


def test_within_a_time_tests_are_begun_and_the_others_skipped(tmp_path):
    assert collected(tmp_path, "--within", "600") == collected(tmp_path)
    assert collected(tmp_path, "--within", "0") == (set(), 0)


def test_the_order_within_a_time_keeps_groups_together_and_is_the_seed_s(request):
    items = request.session.items[:: max(1, len(request.session.items) // 500)]
    one, again, other = (conftest.drawn(items[::-1], seed) for seed in ("1", "1", "2"))
    assert one == again != other and set(one) == set(items)
    groups = [conftest._group(item) for item in one]
    assert len(set(groups)) == 1 + sum(before != after for before, after in itertools.pairwise(groups))


@pytest.mark.parametrize("name", AGGREGATORS)
def test_each_recipe_is_tried_on_two_nodes_of_two_ranks(name):
    """The properties that other cases check are tested with threads for every number of ranks."""
    found = [case for case in CASES if case.quick and case.ranks == 4 and case.arguments.get("recipe") == name]
    assert any("a_gradient_that_is_not_finite_on_one_rank" in case.name for case in found)


def test_each_suite_has_quick_cases():
    assert {case.name.partition(".")[0] for case in CASES if case.quick} == set(cases.suites())


def test_cases_that_share_a_launch_are_of_one_tier_and_number_of_ranks():
    groups: dict[str, set] = {}
    for case in CASES:
        groups.setdefault(case.group, set()).add((case.ranks, case.quick, case.launch))
    assert all(len(kinds) == 1 for kinds in groups.values())


# ---- the shares of the quick tier ----


def test_of_a_family_one_test_in_n_is_quick_or_none():
    share = shares.Shares()
    never, third = (next(family for family, each in shares.ONE_IN.items() if each == n) for n in (shares.NONE, 3))
    assert [share.is_quick(third) for _ in range(6)] == [True, False, False] * 2
    assert not any(share.is_quick(never) for _ in range(3))
    assert all(share.is_quick("tests/test_a.py::test_of_no_family") for _ in range(3))


@pytest.mark.parametrize("family", shares.ONE_IN)
def test_a_family_that_is_listed_is_there(family):
    if "::" not in family:
        assert any(case.name.partition("[")[0] == family for case in CASES)
        return
    path, *_, function = family.split("::")
    assert f"def {function}(" in (conftest.ROOT / path).read_text()


# ---- the budget ----


def test_what_several_processes_have_counted_is_added_up(tmp_path):
    one, other = budget.Spent(), budget.Spent()
    one.add("quick", "tests/test_a.py::test_one", 2.0)
    one.add("thorough", "tests/test_a.py::test_other", 5.0)
    other.add("quick", "tests/test_a.py::test_one", 1.0)
    other.add_case("quick", "2-errors.of_any_kind", 0.5)
    one.update(json.loads(json.dumps(other.tiers)))
    one.write(tmp_path)
    read = budget.Spent.read(tmp_path / "quick.json", tmp_path / "thorough.json", tmp_path / "missing.json")
    assert (read.total("quick"), read.total("thorough"), read.total()) == (3, 5, 8)
    assert read.of_file("tests/test_a.py") == 8 and read.of_file("tests/test_b.py") == 0
    assert read.tiers["quick"]["cases"] == {"2-errors.of_any_kind": 0.5}
    assert any("3 s  tests/test_a.py" in line for line in read.told())


def test_a_file_that_takes_much_more_than_agreed_is_told():
    run, agreed = budget.Spent(), budget.Spent()
    for seconds, allowed, name in ((60, 30, "slow"), (32, 30, "usual"), (5, 0, "new and short"), (50, 0, "new")):
        run.add("quick", name, seconds)
        agreed.add("quick", name, allowed)
    assert budget.exceeded(run, agreed) == [
        "new, quick: 50 s of processor time where 0 s are agreed",
        "slow, quick: 60 s of processor time where 30 s are agreed",
    ]


def test_the_budget_names_files_that_there_are():
    agreed = budget.Spent.read(budget.COMMITTED)
    assert set(agreed.tiers) == set(budget.TIERS)
    missing = {file for parts in agreed.tiers.values() for file in parts["files"] if not (budget.ROOT / file).exists()}
    assert not missing
