"""Results of the tests without a fault: tests that fail anyway say nothing about a fault, and the times set limits."""

from __future__ import annotations

import hashlib
import json
import pathlib
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tools.mutants import copies, records
from tools.mutants.running import LIMIT, run_tests

COUNTS = (".py", ".cc", ".h", ".inc", ".cu", ".cuh", ".so", ".toml", ".json")


class Baseline:
    """The results of each test file in a tier, obtained file by file and kept in a JSON file."""

    def __init__(self, root: pathlib.Path, path: pathlib.Path):
        self._root, self._path = root, path
        self._changed = threading.Condition()
        self._running: set[str] = set()
        self._known: dict[str, Any] = records.read(path)
        self._sources = _digest(root, [each for each in _listed(root) if not _is_test(each)])

    def of(self, tier: str, files: Sequence[str]) -> dict[str, Any]:
        """For each file its "seconds" and the names of tests that "failed"; runs the files without results.

        Waits for requested files that another thread is running, but for no others.
        """
        keys = {file: f"{tier} {file} {_digest(self._root, [file])} {self._sources}" for file in files}
        while missing := self._claimed(keys):
            try:
                self._run(tier, missing, keys)
            finally:
                with self._changed:
                    self._running -= {keys[file] for file in missing}
                    self._changed.notify_all()
        return {file: self._known[key] for file, key in keys.items()}

    def _claimed(self, keys: Mapping[str, str]) -> list[str]:
        """The files that this thread has to run now; none once all results are known."""
        with self._changed:
            while True:
                unknown = [file for file, key in keys.items() if key not in self._known]
                mine = [file for file in unknown if keys[file] not in self._running]
                if mine or not unknown:
                    self._running |= {keys[file] for file in mine}
                    return mine
                self._changed.wait()

    def _run(self, tier: str, files: Sequence[str], keys: dict[str, str]) -> None:
        print(f"Without a fault: {len(files)} files of the {tier} tests ...", flush=True)
        with copies.made(self._root) as copy:
            copy.check_imports()
            ran = run_tests(copy, tier, files, LIMIT, stop_at_first=False)
        if ran.seconds is None:
            raise RuntimeError(f"The tests do not run even without a fault:\n{ran.output[-4000:]}")
        with self._changed:
            for file in files:
                failed = [name for name in ran.failed if name.partition("::")[0] == file]
                self._known[keys[file]] = {"seconds": round(ran.seconds.get(file, 0.0), 1), "failed": failed}
                for name in failed:
                    print(f"  fails even without a fault, and is skipped: {name}", flush=True)
            records.write(self._path, self._known)


def _listed(root: pathlib.Path) -> list[str]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in names if name.endswith(COUNTS) and not name.startswith(("tools/", "benchmarks/results/"))]


def _is_test(path: str) -> bool:
    return path.startswith("tests/") and path.rpartition("/")[2].startswith(("test_", "budget"))


def _digest(root: pathlib.Path, paths: Sequence[str]) -> str:
    made = hashlib.sha256()
    for path in paths:
        content = (root / path).read_bytes() if (root / path).exists() else b""
        made.update(json.dumps([path, hashlib.sha256(content).hexdigest()]).encode())
    return made.hexdigest()[:16]
