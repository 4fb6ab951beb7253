"""Ranks of the convergence study that are threads train as real ones do, to the bit."""

import dataclasses
import os
import subprocess
import sys

import pytest

from benchmarks import convergence_runs
from benchmarks.convergence_runs import Cluster, Run
from benchmarks.convergence_settings import MODELS
from tests.examples import messages

pytestmark = pytest.mark.thorough

CLUSTER = Cluster(2, 2, 0.05)
# Momentum on the sender's side, dense first; an optimizer for each node, and gradients taken elsewhere.
ARMS = ("recommended", "updates")


def test_threads_train_as_real_ranks_do(tmp_path, monkeypatch):
    catalogues = messages.write_sentences(tmp_path / "texts")
    words = ["--width", "0.125", "--layers", "1", "--vocabulary", "400", "--catalogues", str(catalogues)]
    model = MODELS["transformer"]
    monkeypatch.setitem(MODELS, "transformer", dataclasses.replace(model, options=(*model.options, *words), epochs=2))
    wanted = [Run("transformer", arm, 1.0, seed, 0, CLUSTER) for seed, arm in enumerate(ARMS)]
    convergence_runs.make(wanted, tmp_path / "real.jsonl")
    job = convergence_runs.write_job(wanted, tmp_path / "threads.jsonl", tmp_path / "job.json")
    command = [sys.executable, "-m", "benchmarks.convergence_simulation", str(job)]
    environment = {**os.environ, **convergence_runs.environment(CLUSTER)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    real, threads = (convergence_runs.load(tmp_path / f"{name}.jsonl", wanted) for name in ("real", "threads"))
    for run in wanted:
        for figure in ("weights", "across"):
            assert threads[run][figure] == real[run][figure], (run, figure)
        assert threads[run]["error"] == pytest.approx(real[run]["error"], abs=2e-4)  # four digits, sums in other orders
