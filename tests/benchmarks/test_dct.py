"""The benchmark of DCT: arms on small matrices give what they should, and reports say what was measured."""

import argparse

import numpy as np
import pytest

from benchmarks import bench_dct, dct_quality, dct_threshold, dct_training
from benchmarks.convergence_runs import append
from benchmarks.dct_quality import ARMS


@pytest.mark.thorough
def test_all_arms_are_checked_and_the_report_has_the_targets(monkeypatch):
    monkeypatch.setattr(dct_threshold, "SHAPES", ((8, 4096), (4, 4096)))
    told = []
    section = dct_threshold.measure(argparse.Namespace(quick=False), told.append)
    assert len(told) == len(section.figures["cells"]) == 2 * len(dct_threshold.SPARSITIES)
    assert len(section.verdicts) == 3
    text = bench_dct.render([section], 60.0, "make bench-dct")
    assert "threshold of [8, 4096] at 0.95" in text and "| backward |" in text


def test_differences_of_test_loss_are_paired_by_seed(tmp_path):
    """A store that was cut short goes on, and each arm is compared with dense training of as many trainers."""
    rows, store = "of this index", tmp_path / "runs.jsonl"
    losses = {
        arm.name: {seed: 0.3 + 0.001 * number + 0.01 * seed for seed in range(3)} for number, arm in enumerate(ARMS)
    }
    for arm in ARMS:
        for seed, loss in losses[arm.name].items():
            append(store, {"fingerprint": arm.fingerprint(rows, seed), "loss": loss})
    assert len(dct_quality.load(store)) == 3 * len(ARMS)
    section = dct_quality.told(losses, ARMS, rows)
    mean, half = section.figures["differences"]["90%, one split"]
    assert (round(mean, 6), round(half, 6)) == (round(0.003 / 0.31, 6), 0.0)
    mean, _ = section.figures["differences"]["dct(0.99)"]
    assert mean == pytest.approx(0.001 / np.mean([*losses[dct_quality.DENSE_OF_TWO].values()]))
    losses["dct(0.99)"].pop(1)  # what is not finished is not told
    assert "| dct(0.99) | 0.320" in "".join(section.lines) and section.lines[-1].endswith("| 3 |")
    assert "| 2 |" in "".join(dct_quality.told(losses, ARMS, rows).lines)
    assert [verdict.met for verdict in section.verdicts] == [False, False]
    assert len({arm.fingerprint(rows, 0) for arm in ARMS} | {ARMS[0].fingerprint("others", 0)}) == len(ARMS) + 1


def test_the_table_of_a_training_has_all_arms():
    ranks = [{"steps": 2, "seconds": 1.0, "counted": 100.0, "split": 40.0, "processor": 0.5}] * 4
    results = [{"arm": arm.name, "ranks": ranks} for _ in range(7) for arm in dct_training.ARMS]
    cell = dct_training.summarised(results, 1e8, 128)
    assert {each["samples_per_second"][0] for each in cell.values()} == {2 * 128 / 0.5}
    assert {(each["bytes"], each["split"], each["processor"]) for each in cell.values()} == {(50.0, 40.0, 0.5)}
    (verdict,) = dct_training._verdicts("100mbit", 128, cell)
    assert verdict.measured.startswith("1.00 (1.00 to 1.00)") and not verdict.met
