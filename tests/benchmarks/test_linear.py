"""The benchmark of linear models: the report of its runs, and a small run."""

import pytest

from benchmarks.machines.cluster import Cluster
from benchmarks.sparcml import bench_linear
from tests.benchmarks import needs

pytestmark = pytest.mark.thorough


def run(method, exchange, communication, losses, weights="a"):
    times = {"seconds": communication + 0.5, "communication": communication}
    passes = [{"loss": loss, "test_accuracy": 0.9, **times} for loss in losses]
    passes[0] |= {"seconds": 100.0, "communication": 90.0}  # the first pass does not count
    about = {"samples": 10, "nonzeros": 100, "steps": 3, "entries": 5.0, "entries_of_all": 9.0}
    return {"method": method, "exchange": exchange, "passes": passes, "weights": weights, **about}


def figures(sparse=0.1, loss=0.5, weights="a"):
    runs = [
        run("sgd", "dense", 3.0, [0.6, 0.5]),
        run("sgd", "auto", sparse, [0.6, loss]),
        run("cd", "dense", 2.0, [0.6, 0.6]),
    ]
    runs += [run("sgd", "dense", 3.2, [0.6, 0.5]), run("cd", "allgather", 0.2, [0.6, 0.6], weights)]
    return {"rate": "1gbit", "reached": 9e8, "runs": runs, "learnt": runs[0], "scikit_learn": 0.905}


def test_times_are_medians_over_launches_and_compared_with_the_dense_ones():
    first, second, *descent = bench_linear.rows_of(figures()["runs"])
    assert first["communication"] == pytest.approx(3.1) and first["each"] == [3.0, 3.2]
    assert second["times_dense"] == pytest.approx(31) and [row["times_dense"] for row in descent] == [1, 10]


def test_each_target_can_be_missed():
    assert [verdict.met for verdict in bench_linear.verdicts(figures())] == [True] * 5
    missed = figures(sparse=0.4, loss=0.500001, weights="b")
    missed["scikit_learn"] = 0.92
    assert [verdict.met for verdict in bench_linear.verdicts(missed)] == [False, False, False, True, False]


def test_report_and_picture(tmp_path):
    text = bench_linear.render(figures())
    assert "| sgd, 3 steps a pass | auto | 0.600 | 0.100 (0.100) | 5 | 9 | 31.0x |" in text
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.strip().split("\n")}) == 1
    bench_linear.draw(figures(), str(tmp_path / "times.png"))
    assert (tmp_path / "times.png").stat().st_size > 3_000


@needs.namespaces
def test_a_launch_and_its_rival_read_the_same_files(tmp_path):
    options = bench_linear.make_data(tmp_path, bench_linear.Plan(characters=300, files=60))["sgd"]
    with Cluster(2, 1, "1gbit") as cluster:
        found = bench_linear.launch(cluster, tmp_path, {**options, "exchange": "auto", "passes": "2"})
    assert found["ranks"] == 2 and len(found["passes"]) == 2 and 0 < found["communication"] < found["seconds"]
    assert 0.3 < bench_linear.scikit_learn(options) <= 1
