"""The study of many nodes: its table, and that a short training of it runs and is kept."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.nodes import bench_nodes
from benchmarks.nodes.arms import ARMS
from benchmarks.nodes.characters import Run, pieces, texts


def outcome(bits, sent=1000.0):
    return {"bits": bits, "sent": sent, "parameters": 125_000}


def test_an_arm_counts_at_its_best_rate_beside_dense_training():
    outcomes = {
        Run("dense", "transformer", 2, 100, 1.0): outcome(2.5, 500_000.0),
        Run("blocks", "transformer", 2, 100, 1.0): outcome(2.8, 10_000.0),
        Run("blocks", "transformer", 2, 100, 2.0): outcome(2.6, 10_000.0),
        Run("blocks", "transformer", 2, 100, 4.0): outcome(2.7, 10_000.0),
        Run("blocks", "transformer", 2, 100, 2.0, seed=1): outcome(2.62, 10_000.0),
    }
    blocks, dense = bench_nodes.table(outcomes)
    assert (blocks["arm"], blocks["rate"], blocks["bracketed"], blocks["seeds"]) == ("blocks", 2.0, True, 2)
    assert blocks["over_dense"] == pytest.approx(0.11) and blocks["saved"] == 50.0
    assert (dense["over_dense"], dense["saved"], dense["bracketed"]) == (0.0, 1.0, False)


def test_without_dense_training_nothing_is_said_of_it():
    (row,) = bench_nodes.table({Run("blocks", "transformer", 4, 100, 1.0): outcome(2.5)})
    assert row["over_dense"] is None
    assert "| transformer | 4 | 100 | blocks | 2.500 |  |" in bench_nodes.render([row], "Made up.")


def test_the_picture_can_be_drawn(tmp_path):
    outcomes = {Run(arm, "transformer", nodes, 100, 1.0): outcome(2.5) for arm in ARMS for nodes in (2, 4)}
    bench_nodes.draw(bench_nodes.table(outcomes), tmp_path / "nodes.png")
    assert (tmp_path / "nodes.png").stat().st_size > 1000


def test_pieces_are_of_the_text():
    train, held_out = texts()
    assert len(train) > 1_000_000 and len(held_out) > 100_000
    found = pieces(train, np.random.default_rng(0), 3)
    assert found.shape == (3, 49) and found.dtype == np.int32 and 0 <= found.min() <= found.max() < 128


@pytest.mark.thorough
def test_a_training_is_made_once(tmp_path):
    code = (
        "import pathlib, sys; from benchmarks.nodes import bench_nodes; from benchmarks.reporting import writing; "
        f"bench_nodes.STORE = pathlib.Path({str(tmp_path)!r}) / 'runs.jsonl'; "
        f"writing.RESULTS = pathlib.Path({str(tmp_path)!r}); bench_nodes.main()"
    )
    words = ["--nodes", "4", "--steps", "20", "--rates", "2", "--arms", "dense", "blocks", "recommended"]
    for made in (3, 0):
        ran = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert f"3 runs, {made} of them to be made" in ran.stdout
    rows = list(map(json.loads, (tmp_path / "runs.jsonl").read_text().splitlines()))
    assert [row["arm"] for row in rows] == ["dense", "blocks", "recommended"]
    assert all(3 < row["bits"] < 7 for row in rows) and rows[1]["sent"] < rows[0]["sent"] / 30
    assert (tmp_path / "nodes.png").exists() and "| transformer | 4 | 20 | blocks |" in (
        tmp_path / "nodes.md"
    ).read_text()
