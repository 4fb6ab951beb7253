"""Settings for all tests: quiet TensorFlow on few threads, nothing kept of what other runs have measured, and examples
by hypothesis that are the same on each run.

Tests can be shared out over processes, `pytest -n 2 --dist loadgroup`, as `make test` does.
"""

import atexit
import collections
import os
import pathlib
import resource
import shutil
import tempfile

from tests.parallel.launch import QUIET, SECONDS

os.environ.update(QUIET)
os.environ["HVD_SPARSE_CACHE"] = tempfile.mkdtemp(prefix="hvd_sparse_tests")
atexit.register(shutil.rmtree, os.environ["HVD_SPARSE_CACHE"], ignore_errors=True)

import hypothesis  # noqa: E402 - TensorFlow reads the environment when it is first imported
import pytest  # noqa: E402
from hypothesis.internal.conjecture import providers  # noqa: E402

hypothesis.settings.register_profile("suite", deadline=None, derandomize=True, max_examples=20, database=None)
hypothesis.settings.register_profile("search", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
# Else it also draws numbers that stand in our sources: in those that the tests before this one have made it import.
providers._get_local_constants = lambda: providers._local_constants

MULTI_RANK = pathlib.Path(__file__).with_name("test_parallel.py")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items):
    """Says which tests one process runs together, and begins with those that take longest."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=lambda item: item.path != MULTI_RANK)


def _group(item):
    """A module, as it may share a fixture; or the multi-rank cases that share a launch."""
    if item.path != MULTI_RANK:
        return item.path.relative_to(item.config.rootpath).as_posix()
    case = item.callspec.params["case"]
    return f"{case.ranks} ranks" if case.launch is None else f"{case.ranks} ranks, {case.name}"


# ---- what takes the time: the processor's, as several tests share the cores ----

SLOWEST = 30
_seconds: collections.Counter[str] = collections.Counter()
_cases: dict[str, float] = {}  # of which many share a launch


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Adds up the processor time of each group of tests, that of the processes which it has started and awaited too."""
    before = _processor_seconds()
    try:
        return (yield)
    finally:
        _seconds[_group(item)] += _processor_seconds() - before


def pytest_sessionfinish(session):
    """A process that runs tests for another one hands over what it has counted."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["processor_seconds"] = dict(_seconds)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Takes what such a process has handed over."""
    _seconds.update(getattr(node, "workeroutput", {}).get("processor_seconds", {}))


def pytest_runtest_logreport(report):
    """Notes how long a multi-rank case took."""
    for name, value in report.user_properties:
        if name == SECONDS:
            _cases[report.nodeid.partition("[")[2][:-1]] = value


def pytest_terminal_summary(terminalreporter):
    """Tells the most expensive groups, and the multi-rank cases that took longest."""
    if sum(_seconds.values()) < 60:
        return
    terminalreporter.section(f"processor time: {sum(_seconds.values()):.0f} s, of it")
    for group, seconds in _seconds.most_common(SLOWEST):
        terminalreporter.write_line(f"{seconds:7.0f} s  {group}")
    terminalreporter.section(f"multi-rank cases: {sum(_cases.values()):.0f} s, of it")
    for case in sorted(_cases, key=_cases.__getitem__, reverse=True)[:SLOWEST]:
        terminalreporter.write_line(f"{_cases[case]:7.0f} s  {case}")


def _processor_seconds():
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
