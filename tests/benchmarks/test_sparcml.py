"""The benchmark of SparCML's collectives: what it measures, its report, and a small run of two ranks."""

import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.sparcml import bench_sparcml
from benchmarks.sparcml import report as sparcml_report
from benchmarks.sparcml.overlap import ARMS
from hvd_sparse.costs import collectives as collective_costs
from tests.benchmarks import needs

pytestmark = pytest.mark.thorough

TINY = bench_sparcml.WHOLE._replace(
    size=2**14,
    nodes=(2,),
    swept=2,
    densities=(0.001, bench_sparcml.FIG_3, 1.0),
    rounds=(3, 2),
    overlaps=(("recursive_doubling", bench_sparcml.FIG_3),),
)


# ---- measurements ----


def test_fig_3_is_measured_by_ranks_and_by_density():
    cells = {nodes: bench_sparcml.cells_of(bench_sparcml.WHOLE, nodes) for nodes in (2, 4, 8)}
    assert all(bench_sparcml.FIG_3 in [cell["density"] for cell in of_nodes] for of_nodes in cells.values())
    assert len(cells[2]) == len(cells[8]) == 1
    assert [cell["density"] for cell in cells[4]] == [0.0001, 0.001, 1 / 128, 1 / 32, 1 / 8, 1.0, 0.5]
    assert [cell["sets"] for cell in cells[4]] == [*["uniform"] * 6, "identical"]
    assert all({*sparcml_report.FIXED, "auto", "horovod"} <= set(cell["rounds"]) for cell in cells[4])


def test_a_number_of_ranks_that_is_only_swept_has_its_densities_alone():
    plan = bench_sparcml.WHOLE._replace(swept=3)
    assert [cell["density"] for cell in bench_sparcml.cells_of(plan, 3)] == [*plan.densities, plan.identical]


def test_arms_that_seldom_take_part_are_spread_over_the_rounds():
    from benchmarks.sparcml.rank import takes_part

    assert [number for number in range(24) if takes_part(number, 4, 24)] == [5, 11, 17, 23]
    assert all(takes_part(number, 5, 5) for number in range(5))


def test_a_wrong_sum_is_seen(monkeypatch):
    """Shows that the checks of a run can fail."""
    from benchmarks.sparcml import rank as sparcml_rank

    monkeypatch.setattr(sparcml_rank, "hvd", types.SimpleNamespace(rank=lambda: 0))
    monkeypatch.setattr(sparcml_rank.horovod, "allreduce", lambda vector, **_: 3 * vector)
    vectors = sparcml_rank.Sum(1000, 0.1, "uniform")
    values, indices = 3 * vectors.slices.values, vectors.slices.indices
    vectors.check("dense", 3 * vectors.dense)
    vectors.check("sparse", tf.IndexedSlices(values, indices))
    vectors.check("with neutral rows", tf.IndexedSlices(3 * vectors.dense, tf.range(1000)))
    gathered = tf.IndexedSlices(tf.tile(vectors.slices.values, [3]), tf.tile(indices, [3]))
    vectors.check("gathered", gathered)
    one_off = tf.concat([values[:1] + 1, values[1:]], 0)
    for wrong in (
        2 * vectors.dense,
        tf.IndexedSlices(one_off, indices),
        tf.IndexedSlices(values[1:], indices[1:]),
        tf.IndexedSlices(gathered.values[1:], gathered.indices[1:]),
    ):
        with pytest.raises(AssertionError, match="some arm: rank 0 got a wrong result"):
            vectors.check("some arm", wrong)


# ---- the report ----


def made_up_cell(density, sets, union, ms, chosen):
    size = 2**24
    seconds = {arm: [taken / 1e3] * 3 for arm, taken in ms.items()}
    sent = {arm: [3e6, 6e6] for arm in ms}
    both = {"auto": [chosen], sparcml_report.AUTO_AGAIN: [chosen]}
    cell = {"size": size, "density": density, "sets": sets, "union": round(union * size)}
    return {**cell, "seconds": seconds, "sent": sent, "chosen": both}


def made_up_run():
    def ms(**given):
        common = {"horovod": 800.0, "horovod, A/A": 820.0, "auto, A/A": 21.0}
        return {**common, **dict.fromkeys(sparcml_report.FIXED, 900.0), **given}

    sparse = made_up_cell(
        0.001, "uniform", 0.004, ms(recursive_doubling=25.0, split_allgather=20.0, auto=20.6), "split_allgather"
    )
    filled = made_up_cell(1.0, "uniform", 1.0, ms(dynamic=896.0, auto=1000.0), "dynamic")
    seconds = {"computation": [0.1], "collective": [0.1], "one after the other": [0.21], "overlapped": [0.13]}
    seconds |= {"wait": [0.1], "overlapped with a wait": [0.11]}
    overlap = {"collective": "dynamic", "density": 0.01, "matmul": [9, 8, 7], "rounds": 1, "seconds": seconds}
    about = {"nodes": 4, "rate": "1gbit", "reached": 9e8, "congestion": "cubic", "idle": [1e3, 2e3]}
    return {**about, "cells": [sparse, filled], "overlaps": [overlap]}


def test_targets_are_judged_by_the_cells_that_were_measured():
    run = made_up_run()
    made = sparcml_report.verdicts(sparcml_report.rows_of([run]), sparcml_report.overlaps_of([run]))
    assert [(verdict.measured.split(" ")[0], verdict.met) for verdict in made] == [
        ("40.0x", True),
        ("1.12x", False),
        ("+7.3%", False),  # the range of +3.0% and +11.6%
        ("+11.6%", False),
        ("+7.3%", False),
        ("+11.6%", False),
        ("0.30", True),
    ]
    assert "split_allgather against Horovod" in made[0].what
    assert made[-1].measured.endswith("(100 ms of computation, 100 of the collective)")


def test_targets_are_for_one_link():
    run = {**made_up_run(), "rate": "10gbit"}
    assert not sparcml_report.verdicts(sparcml_report.rows_of([run]), sparcml_report.overlaps_of([run]))


def test_claimed_bytes_are_those_of_the_cost_model():
    rows = {(row["density"], row["arm"]): row for row in sparcml_report.rows_of([made_up_run()])}
    kept = round(2**24 * 0.001)
    load = collective_costs.Load(4, 2**24, 1, 4, kept, 2**24, 2**23)
    split = collective_costs.sent("split_allgather", load)
    assert rows[0.001, "auto"]["claimed"] == rows[0.001, "split_allgather"]["claimed"] == split
    assert rows[0.001, "horovod"]["claimed"] == 1.5 * 4 * 2**24
    assert rows[0.001, "horovod"]["counted"] == 2e6
    identical = {"size": 2**24, "density": 0.5, "sets": "identical", "chosen": {}}
    assert sparcml_report.claimed_bytes("recursive_doubling", identical, 4) == 2 * (8 + 8 * 2**23)


def test_auto_that_changes_its_mind_claims_what_each_round_sends():
    cell = {
        "size": 2**14,
        "density": 0.001,
        "sets": "uniform",
        "chosen": {"auto": ["dynamic", "allgather", "allgather"]},
    }
    dynamic, gathered = (sparcml_report.claimed_bytes(arm, cell, 4) for arm in ("dynamic", "allgather"))
    assert dynamic != gathered
    assert sparcml_report.claimed_bytes("auto", cell, 4) == pytest.approx((dynamic + 2 * gathered) / 3)


def test_tables_and_picture_are_made(tmp_path):
    run = made_up_run()
    rows, overlapped = sparcml_report.rows_of([run]), sparcml_report.overlaps_of([run])
    text = sparcml_report.render([run], rows, overlapped)
    assert "| 4 | 1gbit | 0.1% | uniform | auto (split_allgather) | 3 | 20.6 (20.6) | 38.83 |" in text
    assert "| 9x8 by 8x7 | 100.0 | 100.0 | 210.0 | 130.0 | 100.0 | 110.0 | 30.0 | 0.30 | 10.0 | 0.10 |" in text
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.strip().split("\n")}) == 1
    sparcml_report.draw(rows, str(tmp_path / "sparcml.png"))
    assert (tmp_path / "sparcml.png").stat().st_size > 3_000


# ---- runs ----


@needs.namespaces
def test_two_ranks_measure_everything():
    overlaps = [{"size": 2**14, "collective": name, "density": density, "rounds": 2} for name, density in TINY.overlaps]
    run = bench_sparcml.measure(2, "1gbit", bench_sparcml.cells_of(TINY, 2), overlaps)
    assert [cell["density"] for cell in run["cells"]] == [*TINY.densities, TINY.identical]
    for cell in run["cells"]:
        assert list(cell["seconds"]) == list(cell["rounds"])
        assert {name: len(taken) for name, taken in cell["seconds"].items()} == cell["rounds"]
        for arm, chosen in cell["chosen"].items():
            assert len(chosen) == cell["rounds"][arm] and set(chosen) <= set(collective_costs.CANDIDATES)
    assert [cell["union"] for cell in run["cells"][2:]] == [2**14, 2**13]
    for row in sparcml_report.rows_of([run]):
        assert row["claimed"] * 0.95 < row["counted"], row  # a piece may have slightly fewer rows than the mean
    (overlap,) = sparcml_report.overlaps_of([run])
    assert list(overlap["ms"]) == list(ARMS) and overlap["exposed_ms"] == pytest.approx(
        overlap["ms"]["overlapped"] - overlap["ms"]["computation"]
    )
    assert np.isfinite(overlap["share"]) and overlap["matmul"][0] >= 1
    assert "0.7812%" in sparcml_report.render([run], sparcml_report.rows_of([run]), [overlap])


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["bench_sparcml"])
    with pytest.raises(SystemExit, match="needs root"):
        bench_sparcml.main()
