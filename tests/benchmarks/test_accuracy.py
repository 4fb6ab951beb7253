"""How much sooner an accuracy is reached: real ranks, and the report."""

import argparse

import pytest

from benchmarks.train import bench_accuracy
from benchmarks.train.accuracy_rank import ARMS, BLOCK, DENSE, HOROVOD, HOROVOD_FP16, RECOMMENDED, TORUS_FP16

pytestmark = pytest.mark.thorough
SMALL = ["--model", "small_resnet"]


def run(arm, seed, *accuracies):
    curve = [[10 * (number + 1), float(number + 1), accuracy] for number, accuracy in enumerate(accuracies)]
    return {"arm": arm, "seed": seed, "curve": curve, "seconds": {"steps": 0.1, "looks": 0.5}, "parameters": 7}


MEASURED = {
    "runs": [
        run(HOROVOD, 1, 0.1, 0.4, 0.5),
        run(RECOMMENDED, 1, 0.2, 0.3, 0.47),
        run(HOROVOD, 0, 0.1, 0.96, 1.0),
        run(RECOMMENDED, 0, 0.96, 0.9, 0.97),
        *(run(arm, seed, 0.1, 0.4, 1.0) for arm in (HOROVOD_FP16, TORUS_FP16) for seed in (0, 1)),
    ],
    "times": {"1gbit": {HOROVOD: [0.4] * 8, HOROVOD_FP16: [0.3] * 8, TORUS_FP16: [0.1] * 8, RECOMMENDED: [0.2] * 8}},
    "whole": [run(arm, 0, 0.1, 0.2, 0.3) for arm in ARMS],
}


def test_ranks_time_all_arms(monkeypatch):
    monkeypatch.setattr(bench_accuracy, "LOCAL", 1)
    times = bench_accuracy.launch([*SMALL, "--blocks", "1", "--steps", "10"])
    assert {arm: len(taken) for arm, taken in times.items()} == dict.fromkeys(ARMS, BLOCK)
    assert all(seconds > 0 for taken in times.values() for seconds in taken)


def test_ranks_train_all_arms(monkeypatch):
    monkeypatch.setattr(bench_accuracy, "LOCAL", 1)
    runs = bench_accuracy.launch([*SMALL, "--steps", "2", "--every", "1"])
    assert [trained["arm"] for trained in runs] == list(ARMS)
    for trained in runs:
        assert trained["parameters"] == runs[0]["parameters"] > 7e4
        steps, seconds, accuracies = zip(*trained["curve"], strict=True)
        assert steps == (1, 2) and 0.0 < seconds[0] < seconds[1] and all(0.0 <= each <= 1.0 for each in accuracies)


def test_steps_are_those_to_a_share_of_what_horovod_ends_at_with_the_same_seed():
    halves = {HOROVOD_FP16: [30, 30], TORUS_FP16: [30, 30]}
    assert bench_accuracy.steps_to(MEASURED["runs"], 0.95) == {HOROVOD: [20, 30], **halves, RECOMMENDED: [10, None]}
    assert bench_accuracy.steps_to(MEASURED["runs"], 0.9) == {HOROVOD: [20, 30], **halves, RECOMMENDED: [10, 30]}


def test_the_report_counts_looks_and_judges_by_the_mean_of_the_seeds(tmp_path):
    # 20 steps of 0.4 s and 2 evaluations of 0.5 s, against 10 of 0.2 s and 1; the other seed never reaches it.
    assert bench_accuracy.sooner(MEASURED, 0.95, "1gbit", 10, [HOROVOD]) == [9.0 / 2.5, 0.0]
    # The first of the dense ones takes 30 steps of 0.1 s and 3 evaluations.
    assert bench_accuracy.sooner(MEASURED, 0.95, "1gbit", 10, DENSE) == [pytest.approx(4.5 / 2.5), 0.0]
    sooner, than_all, horovod, *_ = bench_accuracy.verdicts_of(MEASURED, 10)
    assert sooner.met and sooner.measured == "1.80 (3.60, 0.00)"
    assert not than_all.met and than_all.measured == "0.90 (1.80, 0.00)"
    assert not horovod.met and horovod.measured == "3 s, 14 s by the product"
    options = argparse.Namespace(model="resnet50", steps=30, every=10, seeds=2)
    text = bench_accuracy.render(MEASURED, options, 60.0)
    assert "| 95% | recommended | 10, never |  |" in text and "| 95% | Horovod | 20, 30 | 11 |" in text
    bench_accuracy.draw(MEASURED, str(tmp_path / "accuracy.png"))
    assert (tmp_path / "accuracy.png").stat().st_size < 80_000
