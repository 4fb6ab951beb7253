"""Ranks of the convergence study that are threads train as real ones do, to the bit."""

import dataclasses

import pytest

from benchmarks import convergence_runs
from benchmarks.convergence_runs import Cluster, Run
from benchmarks.convergence_settings import MODELS
from tests.examples import messages

pytestmark = pytest.mark.thorough

CLUSTER = Cluster(2, 2, 0.05)
# Momentum on the sender's side, dense first; an optimizer for each node, and gradients taken elsewhere.
ARMS = ("momentum", "updates")


def test_threads_train_as_real_ranks_do(tmp_path, monkeypatch):
    catalogues = messages.write_sentences(tmp_path / "texts")
    words = ["--width", "0.125", "--layers", "1", "--vocabulary", "400", "--catalogues", str(catalogues)]
    model = MODELS["transformer"]
    monkeypatch.setitem(MODELS, "transformer", dataclasses.replace(model, options=(*model.options, *words), epochs=2))
    wanted = [Run("transformer", arm, 1.0, 0, 0, CLUSTER) for arm in ARMS]
    convergence_runs.make(wanted, tmp_path / "real.jsonl")
    convergence_runs.simulate(wanted, tmp_path / "threads.jsonl")
    real, threads = (convergence_runs.load(tmp_path / f"{name}.jsonl", wanted) for name in ("real", "threads"))
    for run in wanted:
        for figure in ("weights", "across"):
            assert threads[run][figure] == real[run][figure], (run, figure)
        for figure in ("error", "loss"):
            assert threads[run][figure] == pytest.approx(real[run][figure], abs=2e-4)  # sums in other orders
        assert len(real[run]["curve"]) == len(threads[run]["curve"]) == 2
        assert 0 < real[run]["error"] < 9 and 0 <= real[run]["final"] <= 100 and 5 < real[run]["top5"] <= 100
