"""Simulated ranks of the convergence study, which are threads, train as real ones do, bit for bit."""

import dataclasses

import pytest

from benchmarks.convergence import runs as convergence_runs
from benchmarks.convergence.runs import Cluster, Run
from benchmarks.convergence.settings import MODELS
from benchmarks.studies import store
from tests.examples import messages

pytestmark = pytest.mark.thorough

CLUSTER = Cluster(2, 2, 0.05)
# Density warm-up, an optimizer per node, and look-ahead gradients; and messages whose lengths differ.
COMPARED = ("updates_warmed", "bucket8_updates")


def test_threads_train_as_real_ranks_do(tmp_path, monkeypatch):
    catalogues = messages.write_sentences(tmp_path / "texts")
    words = ["--width", "0.125", "--layers", "1", "--vocabulary", "400", "--catalogues", str(catalogues)]
    model = MODELS["transformer"]
    monkeypatch.setitem(MODELS, "transformer", dataclasses.replace(model, options=(*model.options, *words), epochs=2))
    runs = [Run("transformer", arm, 1.0, 0, 0, CLUSTER) for arm in COMPARED]
    convergence_runs.make(runs, tmp_path / "real.jsonl")
    convergence_runs.simulate(runs, tmp_path / "threads.jsonl")
    outcomes = (store.load(tmp_path / f"{name}.jsonl", runs) for name in ("real", "threads"))
    for real, threads in zip(*(each.values() for each in outcomes), strict=True):
        compare(real, threads)


def compare(real, threads):
    for figure in ("weights", "across"):
        assert threads[figure] == real[figure], figure
    for figure in ("error", "loss"):
        assert threads[figure] == pytest.approx(real[figure], abs=2e-4)  # the order of sums differs
    assert len(real["curve"]) == len(threads["curve"]) == 2
    assert 0 < real["error"] < 9 and 0 <= real["final"] <= 100 and 5 < real["top5"] <= 100
