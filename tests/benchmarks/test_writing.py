"""The files that benchmarks write: one small report each, without samples; so are those in benchmarks/results/."""

import json

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from benchmarks.averaging import runs as averaging_runs
from benchmarks.convergence import runs as convergence_runs
from benchmarks.dct import quality as dct_quality
from benchmarks.dct import translation as dct_translation
from benchmarks.dropping import runs as dropping_runs
from benchmarks.nodes import bench_nodes
from benchmarks.reporting import timing, writing

ENDINGS = {".json", ".md", ".png"}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "RESULTS", tmp_path / "reports")
    monkeypatch.setattr(writing, "SAMPLES", tmp_path / "samples")
    return tmp_path


def test_the_summary_is_kept_and_the_samples_lie_apart(folders):
    stem = writing.write_results("exchange", {"ms": 0.123456789}, "# Exchange\n", [[0.5] * 20])
    assert {path.name for path in stem.parent.iterdir()} == {"exchange.json", "exchange.md"}
    assert stem.with_suffix(".json").read_text() == '{"ms": 0.12346}\n'
    assert stem.with_suffix(".md").read_text() == "# Exchange\n"
    (samples,) = (folders / "samples").iterdir()
    assert samples.name == f"exchange-{timing.machine()['date']}.json"
    assert json.loads(samples.read_text()) == {"ms": 0.123456789, "samples": [[0.5] * 20]}


def test_lists_of_samples_become_medians_and_other_lists_stay():
    tree = {"shape": [4, 2], "seconds": [3.0, 1.0, 2.0, 9.0, 2.5], "cells": [{"arm": "dense", "idle": [1, 2]}]}
    assert writing.medians(tree) == {**tree, "seconds": {"median": 2.5, "rounds": 5}}
    assert writing.medians([[1, 10]] * 3 + [[3, 20]] * 4) == {"medians": [3, 20], "rounds": 7}


def test_a_table_names_each_column_once():
    rows = [{"arm": "dense", "ms": 1.0}, {"arm": "auto", "ms": 2.0, "chosen": "topk"}]
    table = writing.columns(rows)
    assert table == {"columns": ["arm", "ms", "chosen"], "rows": [["dense", 1.0, None], ["auto", 2.0, "topk"]]}


def test_json_is_wrapped_and_reads_back():
    data = {"rows": [[number, "x" * 30, None, True] for number in range(40)], "empty": {}, "far": float("inf")}
    text = writing.as_json(data)
    assert json.loads(text) == data
    assert max(map(len, text.splitlines())) <= writing.WIDTH < len(text)


def test_a_picture_stays_small(tmp_path):
    figure = Figure(figsize=(17, 9))
    for axis in figure.subplots(2, 4).flatten():
        axis.plot(np.random.default_rng(0).random((8, 5)), "o-")
    writing.save_picture(figure, tmp_path / "picture.png")
    Image.open(tmp_path / "picture.png").verify()
    assert (tmp_path / "picture.png").stat().st_size <= writing.LARGEST_PICTURE


def test_the_reports_that_are_kept_are_one_a_benchmark_and_small():
    runs = (averaging_runs, bench_nodes, convergence_runs, dct_quality, dct_translation, dropping_runs)
    finished = {each.STORE for each in runs}  # not reports
    kept = [path for path in writing.RESULTS.iterdir() if path not in finished]
    names = {path.name.partition(".")[0] for path in kept}  # averaging.service.png belongs to averaging
    assert {path.suffix for path in kept} == ENDINGS
    for name in names:
        bench = name.replace("-", "_")
        assert list((writing.ROOT / "benchmarks").glob(f"*/bench_{bench}.py")), f"{name} is no benchmark"
        assert {path.suffix for path in kept if path.name.partition(".")[0] == name} >= {".json", ".md"}
    limits = {".json": writing.LARGEST_JSON, ".png": writing.LARGEST_PICTURE}
    assert [path.name for path in kept if path.stat().st_size > limits.get(path.suffix, 1e6)] == []
