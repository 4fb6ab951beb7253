"""`python -m benchmarks`: each benchmark has a row, and is found by its name."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from benchmarks.__main__ import BENCHMARKS, listed, module_of

ROOT = pathlib.Path(__file__).parents[2]


def test_each_benchmark_has_a_row():
    there = {path.stem.removeprefix("bench_") for path in (ROOT / "benchmarks").rglob("bench_*.py")}
    assert set(BENCHMARKS) == there and list(BENCHMARKS) == sorted(there)
    assert all(f"make bench-{name} " in listed() for name in there)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_is_where_its_name_says(name):
    assert (ROOT / f"{module_of(name).replace('.', '/')}.py").exists()


def test_a_name_runs_it_with_its_options_and_others_are_refused():
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks", "paper", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert told.returncode == 0 and "bench_paper.py" in told.stdout
    told = subprocess.run([sys.executable, "-m", "benchmarks", "none"], cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 1 and "'none'" in told.stderr and "exchange" in told.stderr
