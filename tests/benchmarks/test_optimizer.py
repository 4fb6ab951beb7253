"""The cost of a step whose exchange runs the optimizer: real ranks, and the report."""

import argparse

import pytest

from benchmarks.passes import bench_optimizer
from benchmarks.passes.optimizer_rank import AGAIN, AHEAD, ALONE, DENSE, GAIN_RATIO, MOMENTUM, SPARSE, UPDATES

pytestmark = pytest.mark.thorough

ARMS = (ALONE, DENSE, SPARSE, AGAIN, MOMENTUM, UPDATES, AHEAD, GAIN_RATIO)


def test_ranks_time_all_arms_and_count_what_is_kept():
    measured = bench_optimizer.measure(10**5, 0.01, 1)
    assert {name: len(taken) for name, taken in measured["times"].items()} == dict.fromkeys(ARMS, 1)
    assert all(taken[0] > 0 for taken in measured["times"].values())
    megabytes = {name: kept / 1e6 for name, kept in measured["kept"].items()}
    assert megabytes[ALONE] == megabytes[DENSE] == pytest.approx(8, rel=0.01)  # two slots
    assert megabytes[SPARSE] == pytest.approx(8 + 2, rel=0.01)  # and half a residual
    assert megabytes[UPDATES] == pytest.approx((8 + 4) / 2, rel=0.01)
    assert megabytes[AHEAD] == pytest.approx((8 + 4) / 2 + 8, rel=0.01)
    assert megabytes[GAIN_RATIO] == pytest.approx(megabytes[AHEAD], rel=0.01)


def test_the_report_judges_by_rounds(tmp_path):
    rounds = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0]
    times = {name: list(rounds) for name in ARMS}
    times[UPDATES] = [1.1 * each for each in rounds]
    measured = {"times": times, "kept": dict.fromkeys(ARMS, 6_000_000)}
    momentum, updates, memory = bench_optimizer.verdicts_of(measured, 10**6)
    assert momentum.met and memory.met and not updates.met
    assert updates.measured == "1.100 (1.100 to 1.100); A/A 1.000 (1.000 to 1.000)"
    options = argparse.Namespace(elements=10**6, density=0.01, rounds=7)
    text = bench_optimizer.render(measured, options, 60.0)
    assert "**missed**" in text and "| updates(hitopk) | 44 (28 to 60) | 1.10 | 6 |" in text
    bench_optimizer.draw(measured, str(tmp_path / "optimizer.png"))
    assert (tmp_path / "optimizer.png").stat().st_size < 80_000
