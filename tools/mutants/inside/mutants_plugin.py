"""A pytest plugin for the runs in a copy: orders files by cost, cheapest first, and records what was run.

It imports nothing from here, since a run imports the copy's packages.
"""

import json
import os

_seconds = {}
_failed = []


def pytest_collection_modifyitems(config, items):
    """Puts the room's own files first, then orders by cost."""
    order = {path: number for number, path in enumerate(json.loads(os.environ["MUTANTS_ORDER"]))}
    items.sort(key=lambda item: order.get(_file(item.nodeid), len(order)))


pytest_collection_modifyitems.trylast = True


def pytest_runtest_logreport(report):
    _seconds[_file(report.nodeid)] = _seconds.get(_file(report.nodeid), 0.0) + report.duration
    if report.failed and report.nodeid not in _failed:
        _failed.append(report.nodeid)


def pytest_collectreport(report):
    if report.failed:
        _failed.append(report.nodeid)


def pytest_sessionfinish(session):
    with open(os.environ["MUTANTS_REPORT"], "w", encoding="utf8") as file:
        json.dump({"seconds": _seconds, "failed": _failed}, file)


def _file(nodeid):
    return nodeid.partition("::")[0]
