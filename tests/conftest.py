"""Settings for all tests: TensorFlow is quiet and uses few threads, measurements of other runs are not reused,
Hypothesis draws the same examples in each run, and tests are in two tiers: those not marked `thorough` are quick.

Tests can be spread over processes with `pytest -n 2 --dist loadgroup`, as `make test` does. `--within SECONDS` begins
as many as there is time for, and those that are not quick in an order that the commit decides; the others are skipped
and counted.
"""

import atexit
import gc
import os
import pathlib
import random
import resource
import shutil
import subprocess
import tempfile
import time

from tests.parallel.launch import QUIET, SECONDS

ROOT = pathlib.Path(__file__).parents[1]
STARTING = pathlib.Path(__file__).with_name("parallel") / "starting"

os.environ.update(QUIET)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(STARTING), os.environ.get("PYTHONPATH")]))
os.environ["HVD_SPARSE_CACHE"] = tempfile.mkdtemp(prefix="hvd_sparse_tests")
atexit.register(shutil.rmtree, os.environ["HVD_SPARSE_CACHE"], ignore_errors=True)

import hypothesis  # noqa: E402 - TensorFlow reads the environment when it is first imported
import pytest  # noqa: E402
from hypothesis.internal.conjecture import providers  # noqa: E402

from tests import budget, shares  # noqa: E402

hypothesis.settings.register_profile("suite", deadline=None, derandomize=True, max_examples=12, database=None)
hypothesis.settings.register_profile("search", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
# Hypothesis would also draw constants from our sources, depending on which modules earlier tests have imported.
providers._get_local_constants = lambda: providers._local_constants

MULTI_RANK = pathlib.Path(__file__).with_name("test_parallel.py")
FEW = 4  # the quick tier runs a property test on a quarter of its examples

# ---- tiers ----


def pytest_addoption(parser):
    """Adds `--within`."""
    parser.addoption(
        "--within",
        type=float,
        metavar="SECONDS",
        help="begin no test after these; the commit draws the order, but for quick tests: each run gets to others",
    )


def pytest_configure(config):
    """Registers the marker of the tier; done here so that `tests.faults.against` has it in older checkouts too."""
    config.addinivalue_line("markers", "thorough: not in `make test`, but in `make test-rest`")


def pytest_generate_tests(metafunc):
    """Makes two tests of each Hypothesis property: a quick one on few examples, a thorough one on all."""
    if hypothesis.is_hypothesis_test(metafunc.function):
        metafunc.fixturenames.append("examples")
        metafunc.parametrize("examples", ["few", pytest.param("all", marks=pytest.mark.thorough)])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    """Reduces the number of examples of tests with `examples=few`."""
    if not _has_few_examples(item):
        return (yield)
    law = item.function
    settings = law._hypothesis_internal_use_settings
    law._hypothesis_internal_use_settings = hypothesis.settings(settings, max_examples=settings.max_examples // FEW)
    try:
        return (yield)
    finally:
        law._hypothesis_internal_use_settings = settings


def _has_few_examples(item):
    return hasattr(item, "callspec") and item.callspec.params.get("examples") == "few"


def tier(item):
    """The tier of a test."""
    return "thorough" if item.get_closest_marker("thorough") else "quick"


# ---- distribution over processes ----


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the markers
def pytest_collection_modifyitems(items):
    """Groups tests that one process must run together, and puts the files that take longest first.

    A property is not tested on few examples if the same run, or the same tier, tests it on all.
    """
    share = shares.Shares()
    for item in items:
        if tier(item) == "quick" and not share.is_quick(_function(item)):
            item.add_marker(pytest.mark.thorough)
    repeated = [item for item in items if _has_few_examples(item)]
    repeated = {item for item in repeated if not item.config.getoption("markexpr") or tier(item) == "thorough"}
    items[:] = [item for item in items if item not in repeated]
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    if items and _draws(items[0].config):
        items[:] = drawn(items, _commit())
        return
    expected = budget.Spent.read(budget.COMMITTED)
    items.sort(key=lambda item: (item.path != MULTI_RANK, -expected.of_file(_file(item))))


def _draws(config):
    """Whether the commit decides the order: of the quick tests all are to be begun, so the longest are begun first."""
    return config.getoption("within") is not None and config.getoption("markexpr") != "not thorough"


def drawn(items, seed):
    """The items, group by group, in an order that the seed decides."""
    places = {group: number for number, group in enumerate(sorted({_group(item) for item in items}))}
    order = random.Random(seed).sample(range(len(places)), len(places))
    return sorted(items, key=lambda item: order[places[_group(item)]])


def _commit():
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip()


_began = time.monotonic()
_begun = set()  # groups; their tests share what the first has started


@pytest.hookimpl(tryfirst=True)  # before fixtures are made
def pytest_runtest_setup(item):
    """Skips tests that would begin after the time of `--within`."""
    within, group = item.config.getoption("within"), _group(item)
    if within is None or group in _begun or time.monotonic() - _began < within:
        _begun.add(group)
    else:
        pytest.skip(f"not begun within {within:.0f} s: left to runs of other commits, or without --within")


def _group(item):
    """A test function or class; a module whose tests share a fixture; or the multi-rank cases that share a launch."""
    if item.path == MULTI_RANK:
        return item.callspec.params["case"].group
    if _shares_a_fixture(item):
        return _file(item)
    return _function(item) if item.cls is None else _function(item).rpartition("::")[0]


def _function(item):
    return item.nodeid.partition("[")[0]


def _shares_a_fixture(item):
    """Whether the test needs a fixture defined here that is made once for several tests."""
    found = (item._fixtureinfo.name2fixturedefs.get(name, ()) for name in item.fixturenames)
    return any(each.baseid.startswith("tests") and each.scope != "function" for defined in found for each in defined)


def _file(item):
    return pathlib.Path(os.path.relpath(item.path, ROOT)).as_posix()


def pytest_collection_finish():
    """Excludes all objects made by the imports from garbage collection.

    Keras collects garbage whenever its session is cleared, which takes a third of a second with TensorFlow's objects.
    """
    gc.collect()
    gc.freeze()


# ---- time: that of the processor, as several tests share the cores ----

_spent = budget.Spent()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Adds up each test's processor time, including that of the processes it started and waited for."""
    before = _processor_seconds()
    try:
        return (yield)
    finally:
        _spent.add(tier(item), item.nodeid.partition("[")[0].partition("@")[0], _processor_seconds() - before)


def pytest_runtest_logreport(report):
    """Records the processor time of a multi-rank case."""
    for name, value in report.user_properties:
        if name == SECONDS and report.when == "call":
            case = report.nodeid.partition("[")[2].rpartition("]")[0]
            _spent.add_case("thorough" if "thorough" in report.keywords else "quick", case, value)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Adds the times counted by a worker process."""
    _spent.update(getattr(node, "workeroutput", {}).get("processor_seconds", {}))


def pytest_sessionfinish(session):
    """Sends the counted times to the main process or, in the main process, writes them to a file."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["processor_seconds"] = _spent.tiers
    else:
        _spent.write(budget.RECORDS)


def pytest_terminal_summary(terminalreporter):
    """Prints which tests took longest, if the run took long enough."""
    if _spent.total() >= 60:
        terminalreporter.section("processor time")
        for line in _spent.told():
            terminalreporter.write_line(line)


def _processor_seconds():
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
