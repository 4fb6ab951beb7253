"""What more nodes cost a rank: the table and its targets, and that two real nodes are measured."""

from __future__ import annotations

import pytest

from benchmarks.nodes import bench_scale


def rank(**changed):
    found = {"control": 1000.0, "payload": 500.0, "milliseconds": 10.0, "megabytes": 300.0, "descriptors": 20}
    found |= {"threads": 12, "init": 1.0, "first step": 2.0, "import": 5.0, "apart": 0.0, "accuracy": 0.9}
    return {**found, "weights": 10_000, **changed}


def test_the_first_rank_is_told_apart():
    row = bench_scale.row([rank(control=9000.0, **{"import": 7.0}), rank(), rank(control=1200.0), rank()])
    assert (row["nodes"], row["control"], row["control of the first"], row["import"]) == (4, 1000.0, 9000.0, 7.0)
    assert row["control a second"] == 100_000.0 and row["saved"] == pytest.approx(60_000 / 500)


def test_ranks_whose_weights_differ_are_an_error():
    with pytest.raises(ValueError, match="they differ"):
        bench_scale.row([rank(), rank(apart=1e-9)])


@pytest.mark.parametrize(
    "changed, missed", [({}, 0), ({"control": 2001.0}, 1), ({"megabytes": 365.0}, 1), ({"descriptors": 25}, 1)]
)
def test_targets_are_between_the_fewest_and_the_most_nodes(changed, missed, tmp_path):
    rows = [bench_scale.row([rank()] * 2), bench_scale.row([rank(**changed)] * 4)]
    assert sum(not verdict.met for verdict in bench_scale.verdicts_of(rows)) == missed
    text = bench_scale.render(rows, "Made up.")
    assert text.count("**missed**") == missed and "| 4 | 365 |" in text or "megabytes" not in changed
    bench_scale.draw(rows, tmp_path / "scale.png")
    assert (tmp_path / "scale.png").stat().st_size > 1000


@pytest.mark.thorough
def test_two_nodes_are_measured():
    row = bench_scale.row(bench_scale.measure(2, 4, 4e-3))
    assert row["nodes"] == 2 and row["accuracy"] > 0.5 and row["saved"] > 30
    assert row["control"] > 0 and row["descriptors"] > 5 and row["threads"] > 2
