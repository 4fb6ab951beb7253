"""The benchmark of the cache over a slow file system: files of the given sizes, correct figures, and a report."""

import json
import sys

import numpy as np
import pytest
from PIL import Image

from benchmarks.datacache import bench_datacache, slow_files
from benchmarks.datacache import files as datacache_files
from benchmarks.datacache import files_report as datacache_files_report
from benchmarks.datacache.files import Plan
from benchmarks.datacache.files_report import OURS, RIVALS
from benchmarks.reporting import report, writing
from examples import photographs
from tests.benchmarks import needs

pytestmark = pytest.mark.thorough

FILES, BATCH = 64, 32


def test_files_are_as_large_as_those_of_imagenet_and_the_same_each_time(tmp_path):
    for name in "ab":
        total = photographs.write_like_imagenet(tmp_path / name, 27)
        assert 0.8 * 110_000 < total / 27 < 1.2 * 110_000
    first = sorted((tmp_path / "a").rglob("*.jpg"))
    assert len(first) == 27 and len({path.parent for path in first}) == 9
    for path in first:
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
        assert Image.open(path).size == (500, 375)


def epochs(*seconds):
    return [{"seconds": each, "waited": each / 2, "steps": 10} for each in seconds]


def made_up(waited=0.01, again=0):
    """Figures of one round at one rate, as `measure` makes them; round numbers give known ratios."""
    ours = [{"seconds": 5.0, "waited": 4.0, "steps": 10}, {"seconds": 1.0, "waited": waited, "steps": 10}]
    pairs = [[1.0, 0.8], [1.0, 0.8], [2.0, 1.6]]
    fill = {
        "cold": {"open": 1.0, "epoch": 4.0, "bytes": 160_000_000, "operations": 1000},
        "warm": {"open": 0.1, "epoch": 0.4, "bytes": again, "operations": again},
    }
    link = {
        "calibration": [{"one": 2e7, "rate": 5e7, "latency": 0.001}],
        "fill": [fill],
        OURS: [{"open": 0.0, "epochs": ours, "pairs": pairs, "bytes": 160_000_000, "operations": 1000}],
    }
    for number, name in enumerate(RIVALS):
        run = {"open": 0.0, "epochs": epochs(6.0 + number, 6.0 + number), "bytes": 320_000_000, "operations": 3000}
        link[name] = [run]
    ranks = [{"bytes": 160_000_000, "operations": 1000}, {"bytes": 0, "operations": 0}]
    return {
        "files": 320,
        "bytes": 160_000_000,
        "epochs": 2,
        "rounds": 1,
        "latency": "1ms",
        "in_flight": 16,
        "parameters": 1,
        "batch": BATCH,
        "dropped": True,
        "links": {"50MB/s": link},
        "ranks": ranks,
    }


def test_ratios_are_those_of_the_figures_against_the_better_rival():
    found = datacache_files_report.summary(made_up(), "50MB/s")
    assert found == pytest.approx(
        {"waiting": 300, "throughput": 2, "step": 1.25, "cold": 0.8, "warm": 10, "pairs": 3, "spread": np.log(2) / 2}
    )


def test_targets_are_met_or_missed():
    met = [verdict.met for verdict in datacache_files_report.verdicts(made_up())]
    assert met == [True, True, True, True, False, False, True]
    missed = datacache_files_report.verdicts(made_up(waited=1.0, again=7))
    assert [verdict.met for verdict in missed[1:3]] == [False, False]
    assert missed[1].measured == "7, 7"


def test_without_fuse_it_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(slow_files, "unavailable", lambda: "install FUSE")
    with pytest.raises(RuntimeError, match="install FUSE"):
        datacache_files.measure(tmp_path, print)


@needs.fuse
def test_a_small_run_reads_each_byte_once_and_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "RESULTS", tmp_path / "reports")
    monkeypatch.setattr(writing, "SAMPLES", tmp_path / "samples")
    monkeypatch.setattr(slow_files, "drop_caches", lambda: False)  # global; other tests count repeated reads
    told = []
    section = datacache_files.measure(tmp_path, told.append, Plan(FILES, ("100MB/s",), epochs=2, rounds=1, pairs=1))
    figures = section.figures
    link = figures["links"]["100MB/s"]
    assert (
        figures["ranks"][0]["bytes"] == link["fill"][0]["cold"]["bytes"] == link[OURS][0]["bytes"] == figures["bytes"]
    )
    for again in (figures["ranks"][1], link["fill"][0]["warm"]):
        assert (again["bytes"], again["operations"]) == (0, 0)
    for name in RIVALS:  # the kernel keeps nothing from one epoch to the next
        assert link[name][0]["bytes"] >= 2 * figures["bytes"]
    assert all(epoch["steps"] == FILES // BATCH for name in (*RIVALS, OURS) for epoch in link[name][0]["epochs"])
    assert section.verdicts[0].met and section.verdicts[1].met
    assert [line.split(":")[0] for line in told][1:] == ["round 1 of 1, 100MB/s", "2 ranks"]

    monkeypatch.setattr(datacache_files, "measure", lambda folder, tell: section)
    monkeypatch.setattr(sys, "argv", ["bench_datacache", "--questions", "files"])
    bench_datacache.main()
    stem = writing.RESULTS / "datacache"
    assert report.table(section.verdicts)[-1] in stem.with_suffix(".md").read_text()
    assert json.loads(stem.with_suffix(".json").read_text())["files"]["figures"]["files"] == FILES
    assert stem.with_suffix(".png").stat().st_size > 3_000
    (samples,) = writing.SAMPLES.iterdir()
    assert json.loads(samples.read_text())["links"]["100MB/s"].keys() == link.keys()
