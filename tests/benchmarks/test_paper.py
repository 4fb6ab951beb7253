"""CommLib's performance model: orderings, constants recovered by a fit, and the basis of the reported figures."""

import json
import math

import pytest

from benchmarks.exchange import bench_paper, paper_model
from benchmarks.exchange.paper_model import Constants, Ordering, Setting

pytestmark = pytest.mark.thorough

TRUE = Constants(stream=0.6e9, bandwidth=1.7e9, hidden=0.3, batch=12.0)
SLOW_INSIDE = paper_model.INSIDE._replace(bandwidth=1e8)


@pytest.fixture(scope="module")
def found():
    return bench_paper.calculate()


def made_up(constants):
    """The workloads with the throughputs that the model itself predicts."""
    return [
        work._replace(
            published={column: paper_model.throughput(work, column, constants) for column in paper_model.RECIPES}
        )
        for work in paper_model.TABLE_3
    ]


def test_the_fit_recovers_what_made_its_data():
    fitted = paper_model.fit(made_up(TRUE))
    for name, wanted in TRUE._asdict().items():
        assert math.isclose(getattr(fitted, name), wanted, rel_tol=1e-3), name


def test_the_fit_never_sees_the_predicted_column():
    spoilt = [
        work._replace(published=work.published | {"MSTopK-SGD": 7 * work.published["MSTopK-SGD"]})
        for work in paper_model.TABLE_3
    ]
    assert paper_model.fit(spoilt) == paper_model.fit(paper_model.TABLE_3)


def test_a_step_is_compute_and_what_is_not_hidden():
    work = paper_model.TABLE_3[0]
    alone = 256 / 1150
    exchange = paper_model.exchange_seconds("tree", paper_model.cluster(TRUE), work.size)
    taken = 128 * 256 / paper_model.throughput(work, "Dense-SGD", TRUE)
    assert math.isclose(taken, alone + exchange - 0.3 * 2 / 3 * alone)
    hidden = TRUE._replace(hidden=1.0, stream=3e9)
    assert math.isclose(paper_model.throughput(work, "2DTAR-SGD", hidden), 128 * 1150)  # never less than compute


def test_selection_of_a_flat_exchange_searches_the_whole_vector():
    where = paper_model.cluster(TRUE)
    naive, hitopk = (paper_model.steps(recipe, where, 8 * 10**8)["selection"] for recipe in ("topk", "hitopk"))
    assert 7 < naive / hitopk < 8


def test_orderings_that_do_not_hold_are_found():
    where = paper_model.cluster(TRUE)
    assert [each.broken for each in paper_model.figure_7_orderings(where, [10**6])] == [[], [], []]
    slow = where._replace(inside=SLOW_INSIDE)
    assert Ordering("2DTAR before TreeAR", [10**8]) in paper_model.figure_7_orderings(slow, [10**8])
    assert all(each.broken == [10**8] for each in paper_model.figure_8_orderings(slow, [10**8])[::2])


def test_the_first_number_of_nodes_at_which_one_overtakes_the_other():
    setting = Setting(density=0.01)
    nodes = paper_model.overtaken("hitopk", "torus2d", TRUE, 10**8, setting, 1024)
    for number, slower in ((nodes - 1, False), (nodes, True)):
        where = paper_model.cluster(TRUE, number)
        sparse, dense = (paper_model.exchange_seconds(each, where, 10**8, setting) for each in ("hitopk", "torus2d"))
        assert (sparse > dense) == slower
    assert paper_model.overtaken("hitopk", "torus2d", TRUE, 10**8, Setting(density=0.001), 64) is None


def test_the_orderings_of_5_3_come_out(found):
    assert [entry["broken"] for entry in found["orderings"]] == [[]] * 6


def test_the_constants_are_plausible(found):
    constants = Constants(**found["constants"])
    assert 0.3e9 < constants.stream < 1.2e9 < constants.bandwidth <= 25e9 / 8
    assert 0 <= constants.hidden <= 1 and 2 <= constants.batch <= 64


def test_the_predicted_column_is_within_15_percent(found):
    predicted = {entry["work"]: entry["error"] for entry in found["table 3"] if not entry["fitted"]}
    assert len(predicted) == 4
    assert all(abs(error) < 0.15 for error in predicted.values()), predicted


def test_every_cell_is_reported(found):
    text = bench_paper.render(found)
    for entry in [*found["table 3"], *found["table 4"]]:
        row = f"| {entry['work']} | {entry['column']} | {entry['published']:,.0f} | {entry['computed']:,.0f} |"
        assert row in text
    assert all(name in text and reason in text for name, _, reason in paper_model.ASSUMPTIONS)


def test_the_same_comes_out_twice(found, tmp_path):
    again = bench_paper.calculate()
    assert again == found
    assert json.loads(json.dumps(found))["constants"] == found["constants"]
    bench_paper.draw(found, str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").stat().st_size > 3_000
