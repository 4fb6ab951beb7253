"""Settings for all tests: quiet TensorFlow on few threads, nothing kept of what other runs have measured, examples by
hypothesis that are the same on each run, and the two tiers: what is not marked `thorough` is the quick one.

Tests can be shared out over processes, `pytest -n 2 --dist loadgroup`, as `make test` does.
"""

import atexit
import gc
import os
import pathlib
import resource
import shutil
import tempfile

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

from tests import budget  # noqa: E402

hypothesis.settings.register_profile("suite", deadline=None, derandomize=True, max_examples=12, database=None)
hypothesis.settings.register_profile("search", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
# Else it also draws numbers that stand in our sources: in those that the tests before this one have made it import.
providers._get_local_constants = lambda: providers._local_constants

MULTI_RANK = pathlib.Path(__file__).with_name("test_parallel.py")
FEW = 4  # a law has a quarter of its examples in the quick tier

# ---- tiers ----


def pytest_configure(config):
    """Registers the mark of a tier; here, so that `tests.faults.against` has it in an older checkout, too."""
    config.addinivalue_line("markers", "thorough: not in `make test`, but in `make test-rest`")


def pytest_generate_tests(metafunc):
    """Makes two tests of a law that hypothesis draws examples for: a quick one on few, a thorough one on all."""
    if hypothesis.is_hypothesis_test(metafunc.function):
        metafunc.fixturenames.append("examples")
        metafunc.parametrize("examples", ["few", pytest.param("all", marks=pytest.mark.thorough)])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    """Takes fewer examples where that is asked for."""
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
    """The tier that a test is in."""
    return "thorough" if item.get_closest_marker("thorough") else "quick"


# ---- who runs what ----


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items):
    """Says which tests one process runs together, and begins with those of the files that take longest.

    A law is not tried on few examples where the same run, or the same tier, tries it on all.
    """
    repeated = [item for item in items if _has_few_examples(item)]
    repeated = {item for item in repeated if not item.config.getoption("markexpr") or tier(item) == "thorough"}
    items[:] = [item for item in items if item not in repeated]
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    expected = budget.Spent.read(budget.COMMITTED)
    items.sort(key=lambda item: (item.path != MULTI_RANK, -expected.of_file(_file(item))))


def _group(item):
    """A test function or class; a module whose tests share a fixture; or the multi-rank cases that share a launch."""
    if item.path == MULTI_RANK:
        return item.callspec.params["case"].group
    if _shares_a_fixture(item):
        return _file(item)
    function = item.nodeid.partition("[")[0]
    return function if item.cls is None else function.rpartition("::")[0]


def _shares_a_fixture(item):
    """Whether a fixture of ours that the test needs is made once for several tests."""
    found = (item._fixtureinfo.name2fixturedefs.get(name, ()) for name in item.fixturenames)
    return any(each.baseid.startswith("tests") and each.scope != "function" for defined in found for each in defined)


def _file(item):
    return pathlib.Path(os.path.relpath(item.path, ROOT)).as_posix()


def pytest_collection_finish():
    """Takes all that the imports have made out of the garbage collector's rounds.

    Keras collects garbage whenever its session is cleared: a third of a second with TensorFlow's objects among it.
    """
    gc.collect()
    gc.freeze()


# ---- what takes the time: the processor's, as several tests share the cores ----

_spent = budget.Spent()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Adds up the processor time of each test, that of the processes which it has started and awaited too."""
    before = _processor_seconds()
    try:
        return (yield)
    finally:
        _spent.add(tier(item), item.nodeid.partition("[")[0].partition("@")[0], _processor_seconds() - before)


def pytest_runtest_logreport(report):
    """Notes the processor time of a multi-rank case."""
    for name, value in report.user_properties:
        if name == SECONDS and report.when == "call":
            case = report.nodeid.partition("[")[2].rpartition("]")[0]
            _spent.add_case("thorough" if "thorough" in report.keywords else "quick", case, value)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Takes what a process has counted that ran tests for this one."""
    _spent.update(getattr(node, "workeroutput", {}).get("processor_seconds", {}))


def pytest_sessionfinish(session):
    """Hands over what was counted, or writes it down."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["processor_seconds"] = _spent.tiers
    else:
        _spent.write(budget.RECORDS)


def pytest_terminal_summary(terminalreporter):
    """Tells what took longest, in a run of some length."""
    if _spent.total() >= 60:
        terminalreporter.section("processor time")
        for line in _spent.told():
            terminalreporter.write_line(line)


def _processor_seconds():
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
