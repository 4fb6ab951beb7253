"""Runs functions on real ranks, under horovodrun, for the tests of this folder.

A file `actors_NAME.py` contains the functions: each public one is called on every rank, after `hvd.init`, and passes if
it returns. All ranks are given as one node, or as several by HVD_SPARSE_LOCAL_SIZE, so that sparse recipes select.
test_two_ranks.py lists the files and shows each function as a test; the functions of files that are listed together
share one launch, in order of definition.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import pathlib
import tempfile
import traceback
from collections.abc import Mapping, Sequence

import pytest

from tests.parallel.launch import horovodrun

LIMIT = 300.0  # seconds of a launch, including imports on a busy machine, and for each function in it
EACH = 30.0
ALONE = "HVD_SPARSE_FAULTS_ALONE"  # set: each function has its own launch, so that none fails because of another
STARTED = "HVD_SPARSE_FAULTS_STARTED"  # "0": the functions call hvd.init themselves


def names(*files: str) -> list[str]:
    """The public functions of actors files as FILE.FUNCTION, in order of definition, without imports."""
    return [f"{file}.{name}" for file in files for name in _functions(file)]


def _functions(file: str) -> list[str]:
    tree = ast.parse(pathlib.Path(__file__).with_name(f"actors_{file}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]


class Launched:
    """The outcomes of actors files on `count` ranks; the ranks are launched when an outcome is first requested.

    Args:
        files: their names, without "actors_".
        count: number of ranks P.
        limit: seconds after which all processes are killed, beside `EACH` for each function.
        environment: added to the ranks' environment.
        prefix: put before the launcher.
        thorough: names of functions that have a launch of their own, together.
    """

    def __init__(
        self,
        *files: str,
        count: int,
        limit: float = LIMIT,
        environment: Mapping[str, str] = {},
        prefix: Sequence[str] = (),
        thorough: Sequence[str] = (),
    ):
        self._names, self._thorough, self._count, self._limit = names(*files), thorough, count, limit
        self._environment, self._prefix = environment, prefix
        self._faults: dict[str, str] = {}

    def require(self, name: str) -> None:
        """Fails, with each rank's error text, if the function did not pass on every rank."""
        if name not in self._faults:
            together = [other for other in self._names if (other in self._thorough) == (name in self._thorough)]
            self._launch([name] if os.environ.get(ALONE) else together)
        if self._faults[name]:
            pytest.fail(self._faults[name], pytrace=False)

    def _launch(self, wanted: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = ["-m", "tests.faults.ranks", *wanted, "--results", folder]
            limit = self._limit + EACH * len(wanted)
            ended = horovodrun(self._count, command, limit, environment=self._environment, prefix=self._prefix)
            outcomes = [_outcomes(pathlib.Path(folder) / f"rank{rank}.jsonl") for rank in range(self._count)]
        for name in wanted:
            texts = [_text(rank, outcome.get(name)) for rank, outcome in enumerate(outcomes)]
            told = "".join(text for text in texts if text)
            status = "was killed for taking too long" if ended.status is None else f"ended with {ended.status}"
            self._faults[name] = told and f"{told}--- the launch {status}; it printed\n{ended.output[-3000:]}"


def _outcomes(path: pathlib.Path) -> dict[str, str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["name"]: entry["fault"] for entry in map(json.loads, lines)}


def _text(rank: int, fault: str | None) -> str:
    return f"rank {rank}: never ended it\n" if fault is None else fault and f"rank {rank}:\n{fault}"


def main() -> None:
    """Runs on a rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+", help="FILE.FUNCTION")
    parser.add_argument("--results", type=pathlib.Path)
    options = parser.parse_args()
    import hvd_sparse as hvd

    if os.environ.get(STARTED) != "0":
        hvd.init(local_size=int(os.environ.get("HVD_SPARSE_LOCAL_SIZE", os.environ["HOROVOD_SIZE"])))
    path = options.results / f"rank{os.environ.get('HOROVOD_RANK', '0')}.jsonl"
    for name in options.names:
        file, _, function = name.partition(".")
        fault = ""
        try:
            getattr(importlib.import_module(f"tests.faults.actors_{file}"), function)()
        except Exception:
            fault = traceback.format_exc()
        with open(path, "a") as results:
            results.write(json.dumps({"name": name, "fault": fault}) + "\n")


if __name__ == "__main__":
    main()
