"""The training benchmark: models of known sizes, parts that add up, tables, and a small run of two ranks."""

import sys
import types

import keras
import numpy as np
import pytest

from benchmarks.machines.cluster import Cluster
from benchmarks.reporting import timing
from benchmarks.train import bench_train
from benchmarks.train import breakdown as train_breakdown
from benchmarks.train import models as train_models
from benchmarks.train.breakdown import PARTS, Marks
from tests.benchmarks import needs

pytestmark = pytest.mark.thorough

ARMS = [
    "Horovod",
    "no exchange",
    "import line alone",
    "Horovod-fp16",
    "dense",
    "torus2d-fp16",
    "hitopk",
    "auto",
    "Horovod, A/A",
]


# ---- batches ----


@pytest.mark.parametrize("name", train_models.TASKS)
def test_batches_fit_their_model_and_differ_by_seed(name):
    task = train_models.TASKS[name]
    inputs, labels = next(iter(task.batches(task.size, 0)))
    others, _ = next(iter(task.batches(task.size, 1)))
    first, other = (each[0] if isinstance(each, tuple) else each for each in (inputs, others))
    assert first.shape[0] == labels.shape[0] == task.size.batch
    assert np.any(first.numpy() != other.numpy())
    if isinstance(inputs, tuple):
        np.testing.assert_array_equal(inputs[1][:, 1:], labels[:, :-1])  # the next tokens
    else:
        assert -1 <= first.numpy().min() < -0.9 < 0.9 < first.numpy().max() <= 1


# ---- the breakdown ----


def test_parts_are_between_the_marks():
    marks = Marks(10.0, 10.5, 12.0, 15.0, 15.25, ((11.0, 12.5), (12.25, 13.0), (14.0, 14.5), (12.3, 12.4)))
    parts = train_breakdown.parts_of(marks)
    assert parts == {
        "input wait": 0.5,
        "forward and backward": 1.5,
        "compression": 1.5,  # from 12 to 13 and from 14 to 14.5; before 12 it is hidden
        "exposed communication": 1.5,
        "optimizer": 0.25,
    }
    assert sum(parts.values()) == marks.ended - marks.asked


@pytest.mark.parametrize("spans", [(), ((0.0, 9.0),), ((5.0, 6.0),), ((2.0, 1.0),), ((1.5, 1.75), (1.25, 1.5))])
def test_parts_add_up_whatever_was_selected_when(spans):
    parts = train_breakdown.parts_of(Marks(0.0, 0.25, 1.0, 2.0, 3.0, spans))
    assert sum(parts.values()) == 3.0
    assert all(seconds >= 0 for seconds in parts.values())


def test_marks_that_go_back_in_time_are_refused():
    with pytest.raises(ValueError, match="in order of time"):
        train_breakdown.parts_of(Marks(0.0, 1.0, 0.5, 2.0, 3.0))


def test_a_summary_adds_up_and_tells_the_waiting_for_slower_ranks():
    quick = [Marks(0.0, 0.0, 1.0, 4.0, 5.0, ((0.5, 1.5),)), Marks(5.0, 5.0, 6.0, 8.0, 9.0)]
    slow = [Marks(0.0, 1.0, 3.0, 4.0, 5.0, ((3.0, 3.5),)), Marks(5.0, 5.0, 6.0, 8.0, 9.0)]
    summary = train_breakdown.summary([quick, slow])
    assert sum(summary[part] for part in PARTS) == summary["step"] == 4.5
    assert summary["for slower ranks"] == 0.5  # 2 s in one of four steps
    assert summary["selection in all"] == 1.5 / 4
    assert summary["compression"] == 1.0 / 4


# ---- tables ----


def made_up_run():
    def arm(seconds, across=None):
        telemetry = {} if across is None else {"bytes_across": across}
        breakdown = {**dict.fromkeys(PARTS, 0.1), "step": 0.5, "for slower ranks": 0.02, "selection in all": 0.03}
        return {"seconds": seconds, "sent": [6e6, 12e6], "breakdown": breakdown, "telemetry": telemetry}

    return {
        "shape": [2, 2],
        "rate": "1gbit",
        "reached": 9e8,
        "model": "vgg19",
        "size": {"width": 0.5, "batch": 8},
        "parameters": 1_234_567,
        "density": 0.01,
        "block": 3,
        "idle": [2000.0, 1000.0],
        "memory": 5e9,
        "arms": {
            "Horovod": arm([2.0, 2.0, 4.0]),
            "no exchange": arm([1.0, 1.0, 1.0]),
            "hitopk": arm([1.25, 1.5, 1.2], across=1e6),
        },
    }


def test_rows_are_medians_over_blocks():
    rows = {row["arm"]: row for row in bench_train.rows_of([made_up_run()])}
    assert rows["Horovod"]["samples/s"] == 8 * 4 * 3 / 2.0
    assert (rows["Horovod"]["least"], rows["Horovod"]["most"]) == (24.0, 48.0)
    assert rows["hitopk"]["times Horovod"] == pytest.approx(2.0 / 1.25)
    assert rows["hitopk"]["efficiency"] == pytest.approx(1.0 / 1.25)
    assert rows["hitopk"]["counted"] == 12e6 / 9
    assert (rows["hitopk"]["claimed"], rows["Horovod"]["claimed"]) == (2e6, None)


def test_the_interval_of_a_median_is_that_of_order_statistics():
    ones = np.arange(1.0, 21.0)
    assert timing.paired_ratio(ones, np.ones(20)) == (10.5, 6.0, 15.0)
    assert timing.paired_ratio(ones[:6] * 2, np.full(6, 2.0)) == (3.5, 1.0, 6.0)
    assert timing.paired_ratio(ones[:5], np.ones(5)) == (3.0, -np.inf, np.inf)
    assert timing.paired_ratio([6.0, 1.0], [2.0, 1.0])[0] == 2.0


def test_tables_and_picture_are_made(tmp_path):
    rows = bench_train.rows_of([made_up_run()])
    text = bench_train.render([made_up_run()], rows)
    assert "| vgg19 | 2x2, 1gbit | hitopk | 76.8 (64.0 to 80.0) | 1.60 | 1.600 | 80% | 2.00 | 1.33 |" in text
    widths = {block.count("|", 0, block.index("\n")) for block in text.split("\n\n") if block.startswith("|")}
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.strip().split("\n")}) == 1
    assert len(widths) == 3
    bench_train.draw(rows, str(tmp_path / "train.png"))
    assert (tmp_path / "train.png").stat().st_size > 3_000


# ---- runs ----


def test_a_recipe_that_is_none_is_refused():
    from benchmarks.exchange import arm_recipes

    recipes = arm_recipes.hvd.recipes
    assert arm_recipes.recipe("topk", 0.5) == recipes.topk(0.5)
    assert arm_recipes.recipe("dense", 0.5) == recipes.dense()
    assert arm_recipes.recipe("torus2d-fp16", 0.5) == recipes.torus2d("float16")
    assert arm_recipes.recipe("topk-fp16", 0.5) == recipes.topk(0.5, "float16")
    with pytest.raises(ValueError, match="a recipe of hvd.recipes, also with '-fp16', got 'Compressed'"):
        arm_recipes.recipe("Compressed", 0.5)


def test_an_arm_that_strays_is_seen():
    """Shows that the checks of a run can fail. One rank stands for all, so replicas are equal when they must not be."""
    from benchmarks.train import rank as train_rank

    def arm(losses):
        return types.SimpleNamespace(losses=losses, model=keras.Sequential())

    good = {"Horovod": arm([2.0, 1.0])}
    train_rank.check({**good, "hitopk": arm([2.0, 1.5])})
    for name, strayed, told in [
        ("hitopk", arm([2.0, float("nan")]), "hitopk: a loss is not finite"),
        ("no exchange", arm([2.0, 1.5]), "no exchange: the ranks' variables are equal"),
    ]:
        with pytest.raises(AssertionError, match=told):
            train_rank.check({**good, name: strayed})
    mean = np.random.default_rng(0).standard_normal(1000, np.float32)
    train_rank.check_mean("dense", mean * (1 + 1e-7), mean)
    for wrong in (mean * 4, np.where(np.arange(1000) < 3, 0, mean), np.full(1000, np.nan)):
        with pytest.raises(AssertionError, match="dense: the first mean differs"):
            train_rank.check_mean("dense", wrong, mean)
    halves = mean.astype(np.float16)
    train_rank.check_mean("torus2d-fp16", halves, mean)
    for name, wrong in (("dense", halves), ("torus2d-fp16", halves * 1.01)):
        with pytest.raises(AssertionError, match=f"{name}: the first mean differs"):
            train_rank.check_mean(name, wrong, mean)


@needs.namespaces
def test_two_ranks_train_and_everything_adds_up():
    size = {"width": 1 / 16, "image": 32, "batch": 2, "classes": 10}
    job = {"local": 1, "model": "vgg19", "size": size, "arms": ARMS, "density": 0.05, "steps": 6}
    with Cluster(2, 1) as cluster:
        run = bench_train.measure(cluster, job)
    assert run["parameters"] == 155_454 and list(run["arms"]) == ARMS
    for arm in run["arms"].values():
        assert len(arm["seconds"]) == 2
        breakdown = arm["breakdown"]
        np.testing.assert_allclose(sum(breakdown[part] for part in PARTS), breakdown["step"], rtol=1e-9)
        assert all(breakdown[part] >= 0 for part in PARTS)
        assert breakdown["step"] * 6 <= sum(arm["seconds"]) * (1 + 1e-9)  # mean rank's, and the slowest's
    arms = run["arms"]
    assert arms["hitopk"]["breakdown"]["selection in all"] > 0
    assert arms["dense"]["breakdown"]["selection in all"] == arms["Horovod"]["breakdown"]["selection in all"] == 0
    assert arms["hitopk"]["telemetry"]["density"] == pytest.approx(0.05, rel=0.01)
    sent = 4 * run["parameters"] * 6  # two ranks: each sends the whole gradient in all six steps
    assert sent > min(arms["Horovod-fp16"]["sent"]) > sent / 2 < min(arms["torus2d-fp16"]["sent"]) < sent
    assert min(arms["Horovod"]["sent"]) > sent and min(arms["dense"]["sent"]) > sent
    assert max(arms["hitopk"]["sent"]) < min(arms["Horovod"]["sent"])
    text = bench_train.render([{"shape": [2, 1], "rate": "1gbit", **run}], [])
    assert "155,454" in text and timing.machine()["date"] in text


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["bench_train"])
    with pytest.raises(SystemExit, match="needs root"):
        bench_train.main()
