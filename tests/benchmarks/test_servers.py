"""The benchmark of sharded servers: a small run of four nodes, and the report."""

import json

import numpy as np
import pytest

from benchmarks.machines import local_ranks
from benchmarks.reporting import report
from benchmarks.servers import bench_servers
from benchmarks.servers import report as servers_report
from benchmarks.servers import score as servers_score
from tests.benchmarks import needs

pytestmark = pytest.mark.thorough

TINY = bench_servers.Plan(40_000, rates=("1gbit",), wait=0.01, window=0.5, rounds=1, uneven_wait=0.02, rival=False)


def rank_of(steps: int, counted: float, **others) -> dict:
    return {
        "steps": steps,
        "seconds": 2.0,
        "counted": counted,
        "claimed": 100.0,
        "processor": 0.1,
        "staleness": 3,
        **others,
    }


TRANSLATED = {
    "batches": {arm.name: 100 for arm in servers_score.ARMS},
    "windows": [
        {"arm": arm.name, "ranks": [{"steps": steps, "seconds": 10.0, "computed": 5.0}] * 4}
        for steps in (20, 40)
        for arm in servers_score.ARMS
    ],
}


def results_of(arms: dict[str, list[dict]]) -> list[dict]:
    return [{"arm": name, "ranks": ranks} for name, ranks in arms.items()]


@needs.namespaces
def test_ranks_train_on_servers_and_bytes_are_counted():
    rows = servers_report.rows_of(bench_servers.measure("1gbit", bench_servers.arms_of(TINY), TINY))
    dense, sparse = rows[servers_report.DENSE], rows[servers_report.SPARSE]
    assert dense.claimed == pytest.approx(0.75 * 2 * 4 * 40_000)
    assert 0.5 < dense.counted / dense.claimed < 1.5 and sparse.claimed < dense.claimed / 20
    uneven = servers_report.rows_of(bench_servers.measure("1gbit", bench_servers.uneven_arms_of(TINY), TINY))
    assert uneven[servers_report.UNEVEN_TOGETHER].staleness == 0
    assert all(row.median > 0 for row in uneven.values())


def test_a_push_is_applied_and_timed():
    taken = bench_servers.measure_applying(1, TINY._replace(applied=100_000, applications=2))
    assert all(len(each) == 2 and min(each) > 0 for each in taken.values()) and len(taken) == 6


def test_sentences_are_learnt_on_servers_and_steps_are_timed(tmp_path):
    arm = servers_score.Arm("looking ahead", "lstm", "updates_ahead")
    job, results = tmp_path / "job.json", tmp_path / "results.json"
    job.write_text(json.dumps({"arms": [arm._asdict()], "rounds": [[arm.name]] * 2, "window": 0.1}))
    local_ranks.run_alone(["benchmarks.servers.translation", str(job), str(results)], 1, 300.0)
    told = json.loads(results.read_text())
    assert told["batches"][arm.name] > 0 and len(told["windows"]) == 2
    for window in told["windows"]:
        (rank,) = window["ranks"]
        assert rank["steps"] > 0 and 0 < rank["computed"] < rank["seconds"]


def test_the_report_judges_by_medians(tmp_path):
    arms = {servers_report.DENSE: [rank_of(4, 75.0)] * 4, servers_report.SPARSE: [rank_of(40, 1.0, claimed=14 / 3)] * 4}
    free = {**arms, servers_report.SPARSE: [rank_of(50, 1.0)] * 4}
    uneven = {servers_report.UNEVEN: [rank_of(7, 1.0)] * 4, servers_report.UNEVEN_TOGETHER: [rank_of(4, 1.0)] * 4}
    taken = {"passes": [1.0] * 8, "apply": [1.2] * 8, "apply a push of 1%": [1.3] * 8}
    taken |= {"touched lines": [0.1] * 8, "apply 1% lazily": [0.2] * 8, "apply a push of 1% lazily": [0.3] * 8}
    plan = bench_servers.Plan(wait=0.01)._asdict()
    measured = {
        "plan": plan,
        "links": {servers_report.UNSHAPED: results_of(free), "1gbit": results_of(arms)},
        "rival": {servers_report.UNSHAPED: [3.0, 3.0], "1gbit": [2.0, 2.0]},
    }
    sections = [
        servers_report.of_links(measured, 4),
        servers_report.of_uneven(results_of(uneven), plan, 4),
        servers_report.of_applying({"1": taken}, plan),
    ]
    verdicts = {verdict.what: verdict for section in sections for verdict in section.verdicts}
    told = {what.partition(" (")[0]: (verdict.measured, verdict.met) for what, verdict in verdicts.items()}
    assert told["1gbit: updates a second at 99%, over those of all values"] == ("10.00 (10.00 to 10.00)", True)
    assert told["1gbit: updates a second at 99%, over those without a limit"] == ("0.80 (0.80 to 0.80)", False)
    assert told["1gbit: updates a second at 99%, over ParameterServerStrategy, of 200.0 possible"][1]
    assert told["1gbit: samples a second with one rank at half speed, over synchronous"][0].startswith("1.75")
    assert told["Adam on 6,250,000, 1 threads: over a pass of the same traffic"] == ("1.20 (1.20 to 1.20)", False)
    assert told["1% of it lazily, 1 threads: over a pass of the touched cache lines"] == ("2.00 (2.00 to 2.00)", True)
    assert "**missed**" in report.of_questions("T", [report.Answer(section, "By hand.") for section in sections])
    json.dumps([section.figures for section in sections])
    servers_report.draw(sections[0], str(tmp_path / "servers.png"))
    assert 3_000 < (tmp_path / "servers.png").stat().st_size < 80_000


def test_a_time_to_a_score_is_steps_of_the_study_over_measured_rates(monkeypatch):
    curves = {"dense": [10.0, 20.0, 20.0, 20.0, 20.0], "updates_ahead": [5.0, 14.0, 24.0, 24.0, 24.0]}
    monkeypatch.setattr(servers_score, "curve_of", lambda model, arm: curves[arm])
    lines = servers_score.lines_of({"1gbit": TRANSLATED}, ranks=4)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert [row[1] for row in cells] == ["512", "512", "1280", "1280"]
    # 10 epochs of 100 batches; the score is 19, reached in 1.9 and 2.5 of 5 evaluations, at 12 steps a second.
    assert cells[0][3:] == ["12.0 (8.0 to 16.0)", "167", "167", "380", "32", "1.00"]
    assert cells[1][6:] == ["500", "42", "0.76"]
    monkeypatch.setattr(servers_score, "curve_of", lambda model, arm: [])
    assert "no runs" in servers_score.lines_of({"1gbit": TRANSLATED}, ranks=4)[2]


def test_a_score_that_is_not_reached_takes_forever():
    assert servers_score.reached([1.0, 2.0], 2.5) == np.inf
    assert servers_score.reached([2.0, 1.0], 1.0) == 0.25
