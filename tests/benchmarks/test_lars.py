"""The benchmark of LARS and LAMB: its shapes, arms that agree, verdicts, and a small run of two ranks."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.passes import bench_lars, lars_arms
from benchmarks.passes.lars_arms import ALONE, CHOSEN, SHARED, UNSHARED, UNSHARED_AGAIN, Floors, Layer, Tensors
from benchmarks.reporting import timing
from benchmarks.reporting.timing import Timing

pytestmark = pytest.mark.thorough

LAYERS = [
    Layer("a/kernel", (3, 3, 64, 128)),
    Layer("a/bias", (128,)),
    Layer("b/gamma", (7,)),
    Layer("c/kernel", (5, 3)),
]


def test_the_models_are_those_of_the_papers():
    assert lars_arms.elements_of(lars_arms.layers_of("resnet50")) == 25_557_032
    assert lars_arms.elements_of(lars_arms.layers_of("transformer")) == 63_082_496


@pytest.mark.parametrize("name", bench_lars.NAMES)
def test_all_arms_agree(name):
    """Each arm's check compares with NumPy or with our operations; three rounds, so that steps follow one another."""
    cell = bench_lars.Cell(name, LAYERS, Floors(lars_arms.elements_of(LAYERS)))
    times = timing.interleave(cell.arms(), rounds=2, before=lambda: None)
    steps = [arm for arm in times if arm.startswith("step, tf.function")]
    assert len(steps) == (3 if name == "LARS" else 2)
    before = lars_arms.probes(Tensors(LAYERS).weights)
    assert (lars_arms.probes(cell.ours.weights) != before).all()


def test_an_arm_that_goes_astray_is_seen():
    cell = bench_lars.Cell("LARS", LAYERS, Floors(lars_arms.elements_of(LAYERS)))
    arms = cell.arms()
    for name in (bench_lars.STEPS, bench_lars.AGAIN, "step, tf.function, assign"):
        arms[name].run()
    cell.rivals["tf.function, assign"].weights[3].assign_add(tf.ones([5, 3]))
    with pytest.raises(AssertionError):
        arms["step, tf.function, assign"].check()


def timings(**medians):
    return {name: Timing(median, median, 1) for name, median in medians.items()}


def test_verdicts_take_the_best_rival_and_the_floor_of_both_passes():
    medians = {
        "floor, norms": 10.0,
        "floor, update": 20.0,
        "norms, ours": 12.0,
        "norms, tf.function, a": 50.0,
        "norms, tf.function, b": 36.0,
        "step, ours": 42.0,
        "step, tf.function, a": 80.0,
    }
    cell = {"model": "resnet50", "optimizer": "LARS", "times": timings(**medians)}
    verdicts = bench_lars.verdicts_of([cell], [])
    assert [(verdict.measured.partition(" ")[0], verdict.met) for verdict in verdicts] == [
        ("3.00", True),
        ("1.90", False),
        ("1.20", True),
        ("1.40", False),
    ]
    assert "tf.function, b over ours" in verdicts[0].what


def rank_cell(model, shared, chosen):
    arms = lambda **times: {arm: {"elapsed": [t] * 3, "processor": [t] * 3} for arm, t in times.items()}  # noqa: E731
    steps = arms(**{UNSHARED: 10.0, CHOSEN: chosen, UNSHARED_AGAIN: 10.0})
    ratios = arms(**{ALONE: 10.0, SHARED: shared})
    return {"model": model, "optimizer": "LAMB", "ratios": ratios, "steps": steps, "way": "each rank alone"}


def test_verdicts_of_two_ranks():
    cells = [rank_cell("resnet50", 5.0, 10.1), rank_cell("transformer", 7.0, 11.0), rank_cell("small", 20.0, 10.0)]
    assert [verdict.met for verdict in bench_lars.verdicts_of([], cells)] == [True, True, False, False, True]


def test_two_ranks_of_a_small_model():
    cells = bench_lars.measure_ranks(1, ("small",))
    assert [cell["optimizer"] for cell in cells] == ["LARS", "LAMB"]
    for cell in cells:
        assert all(np.min(cell["ratios"][arm]["elapsed"]) > 0 for arm in (ALONE, SHARED))
        assert cell["choice"].startswith(cell["way"])
    assert "ratios: each rank alone, processor" in "\n".join(bench_lars._rank_table(cells))
