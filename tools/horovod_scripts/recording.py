"""A pytest plugin for one rank: records how each test began and ended, and ends a rank that would wait for ever.

If two ranks run the same tests, one may fail a test in which the other waits for it. If another rank has failed the
current test, or the test takes too long, this rank ends, and the runner continues after that test.
"""

from __future__ import annotations

import json
import os
import pathlib
import threading
import time

FOLDER = "HOROVOD_SCRIPTS_RECORDS"
DONE = "done.json"  # in that folder: the tests that are not to run again
GRACE = 20.0  # seconds to wait after another rank has failed the test
LIMIT = 300.0  # seconds per test
TOLD = 600  # characters of a failure's message
_POLL = 0.5


class _Record:
    """Writes one JSON line for each event of this rank; a thread watches the current test."""

    def __init__(self) -> None:
        self._folder = pathlib.Path(os.environ[FOLDER])
        self._rank = os.environ.get("HOROVOD_RANK", "0")
        self._file = open(self._folder / f"rank{self._rank}.jsonl", "a", encoding="utf8")
        self._test = ""
        self._since = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def done(self) -> set[str]:
        return set(json.loads((self._folder / DONE).read_text()))

    def write(self, test: str, event: str, text: str | list[str] = "") -> None:
        self._test, self._since = (test, time.monotonic()) if event == "begun" else ("", 0.0)
        self._file.write(json.dumps({"test": test, "event": event, "text": text}) + "\n")
        self._file.flush()

    def _watch(self) -> None:
        alone_since = None
        while True:
            time.sleep(_POLL)
            test, now = self._test, time.monotonic()
            if not test:
                alone_since = None
                continue
            alone_since = (alone_since or now) if self._failed_elsewhere(test) else None
            if now - self._since > LIMIT or (alone_since and now - alone_since > GRACE):
                os._exit(3)

    def _failed_elsewhere(self, test: str) -> bool:
        others = (path for path in self._folder.glob("rank*.jsonl") if path.stem != f"rank{self._rank}")
        mark = json.dumps({"test": test, "event": "failed"})[:-1]
        return any(mark in path.read_text(encoding="utf8") for path in others)


def pytest_configure(config) -> None:
    config.pluginmanager.register(_Hooks(_Record()))


class _Hooks:
    def __init__(self, record: _Record):
        self._record = record

    def pytest_collection_modifyitems(self, items) -> None:
        self._record.write("", "collected", [item.nodeid for item in items])
        done = self._record.done()
        items[:] = [item for item in items if item.nodeid not in done]

    def pytest_runtest_logstart(self, nodeid) -> None:
        self._record.write(nodeid, "begun")

    def pytest_runtest_logreport(self, report) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._record.write(report.nodeid, report.outcome, _said(report))

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self._record.write(report.nodeid, "failed", _said(report))


def _said(report) -> str:
    """The message of the exception, or the reason of a skip."""
    if report.outcome == "skipped":
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return " ".join(crash.message.split())[:TOLD]
    return str(report.longrepr or "").strip()[-TOLD:]
