"""Runs functions on real ranks, under horovodrun, for the tests of this folder.

A file `actors_NAME.py` holds the functions: each public one is called on every rank, after `hvd.init()`, and passes by
returning. The test beside it shows each of them as a test:

    launched = ranks.fixture("actors_broadcast", count=2)

    @pytest.mark.parametrize("name", ranks.names("actors_broadcast"))
    def test_on_ranks(name, launched):
        launched.require(name)

The functions of a file share one launch, in the order in which they stand; one that may hang or end a rank has a file
of its own.
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

LIMIT = 300.0  # seconds of a launch, imports on a busy machine included
ALONE = "HVD_SPARSE_FAULTS_ALONE"  # set: each function has a launch to itself, so that none fails for another's fault
STARTED = "HVD_SPARSE_FAULTS_STARTED"  # "0": the functions call hvd.init themselves


def names(module: str) -> list[str]:
    """The public functions of an actors file, in the order in which they stand, without importing it."""
    tree = ast.parse((pathlib.Path(__file__).parent / f"{module}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]


def fixture(
    module: str,
    count: int,
    limit: float = LIMIT,
    environment: Mapping[str, str] = {},
    prefix: Sequence[str] = (),
):
    """A pytest fixture that gives the `Launched` of a file; the prefix is put before the launcher."""

    @pytest.fixture(scope="module", name="launched")
    def launched():
        return Launched(module, count, limit, environment, prefix)

    return launched


class Launched:
    """The outcomes of an actors file on `count` ranks; launched when they are first asked for."""

    def __init__(
        self,
        module: str,
        count: int,
        limit: float = LIMIT,
        environment: Mapping[str, str] = {},
        prefix: Sequence[str] = (),
    ):
        self._module, self._count, self._limit = module, count, limit
        self._environment, self._prefix = environment, prefix
        self._faults: dict[str, str] = {}

    def require(self, name: str) -> None:
        """Fails with the text of every rank on which the function did not pass."""
        if name not in self._faults:
            self._launch([name] if os.environ.get(ALONE) else names(self._module))
        if self._faults[name]:
            pytest.fail(self._faults[name], pytrace=False)

    def _launch(self, wanted: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = ["-m", "tests.faults.ranks", self._module, "--only", *wanted, "--results", folder]
            ended = horovodrun(self._count, command, self._limit, environment=self._environment, prefix=self._prefix)
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
    """What a rank runs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--results", type=pathlib.Path)
    options = parser.parse_args()
    import hvd_sparse as hvd

    if os.environ.get(STARTED) != "0":
        hvd.init()
    module = importlib.import_module(f"tests.faults.{options.module}")
    path = options.results / f"rank{os.environ.get('HOROVOD_RANK', '0')}.jsonl"
    for name in options.only:
        fault = ""
        try:
            getattr(module, name)()
        except Exception:
            fault = traceback.format_exc()
        with open(path, "a") as results:
            results.write(json.dumps({"name": name, "fault": fault}) + "\n")


if __name__ == "__main__":
    main()
