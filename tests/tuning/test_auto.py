"""The choices of auto and their reasons, what it stores for the next run, and its errors."""

from __future__ import annotations

import time
import weakref

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import recipes
from hvd_sparse.aggregators import Hierarchical
from hvd_sparse.costs import CANDIDATES, Cluster, Link
from hvd_sparse.exchange.telemetry import part_names, timed
from hvd_sparse.spec import Spec, describe
from hvd_sparse.transport.communicator import Grid
from hvd_sparse.tuning import links, trials
from hvd_sparse.tuning.auto import Auto
from hvd_sparse.tuning.cache import KEPT_FOR, MeasurementCache
from tests import figures, threads

SIZE, DENSITY, RANKS, LOCAL = 1000, 0.05, 4, 2
LINK = Link(1e-5, 1e9)
RECIPE = recipes.auto(DENSITY, budget=0.0)


def quick_alone(*names):
    """All candidates; the quick tier has only these."""
    return [pytest.param(name, marks=[] if name in names else pytest.mark.thorough) for name in CANDIDATES]


def choices(recipe=RECIPE, size=SIZE, dtype=tf.float32):
    """Each rank's choice."""
    return threads.run(RANKS, LOCAL, lambda grid: recipe.init(Spec(size, grid, dtype)).choice)


def everyone(choice):
    return [choice] * RANKS


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder with the measurements of a real run, and its choices."""
    folder = tmp_path_factory.mktemp("measured")
    with figures.kept_in(folder):
        return folder, choices()


@pytest.fixture
def changed(measured, tmp_path):
    """Uses a folder with a changed copy of that run's measurements."""

    def enter(change=None):
        figures.copy(measured[0], tmp_path / "changed", change)
        return figures.kept_in(tmp_path / "changed")

    return enter


# ---- the choice ----


def test_all_ranks_choose_what_was_measured_to_be_fastest(measured):
    folder, chosen = measured
    (times,) = figures.trials_of(figures.read(folder))
    in_order = {name: times["seconds"][name] for name in CANDIDATES if name in times["seconds"]}
    assert chosen == everyone(trials.fastest(in_order))


@pytest.mark.parametrize("winner", quick_alone("dense", "hitopk"))
def test_the_choice_is_made_by_the_figures_in_the_file_and_told_once_with_its_reason(changed, winner, capsys):
    second = "topk" if winner == "dense" else "dense"
    with changed(figures.won_by(winner, second)):
        assert choices() == choices() == everyone(winner)
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 1
    assert f"{winner}, 1e+03 ms; 2.00 times as fast as {second} (2e+03 ms); a node sends 1 MB" in told[0]
    assert "not tried: " in told[0] and "predicted" in told[0]


@pytest.mark.parametrize("winner", quick_alone("torus2d", "hitopk"))
def test_exchanges_as_what_it_chose(changed, winner):
    vectors = np.random.default_rng(0).standard_normal([RANKS, SIZE]).astype("f4")

    def one_rank(grid, recipe):
        state = recipe.init(Spec(SIZE, grid))
        means = [recipe.aggregate(tf.constant(vectors[grid.world.rank]), state).numpy() for _ in range(3)]
        return [*means, recipe.residual(state).numpy()]

    with changed(figures.won_by(winner)):
        chosen = threads.run(RANKS, LOCAL, lambda grid: one_rank(grid, RECIPE))
    fixed = dict(RECIPE.candidates)[winner]
    for one, other in zip(chosen, threads.run(RANKS, LOCAL, lambda grid: one_rank(grid, fixed)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_predicted_to_be_hopeless_is_not_tried(tmp_path, capsys):
    """For a cluster whose measured memory bandwidth means years of selection."""
    cluster = Cluster(RANKS // LOCAL, LOCAL, LINK, LINK, memory=1e-6)
    with figures.kept_in(tmp_path):
        threads.run(RANKS, LOCAL, lambda grid: links.keep(cluster, MeasurementCache(grid)))
        assert set(choices()) <= {"dense", "torus2d"}
    (times,) = figures.trials_of(figures.read(tmp_path))
    assert set(times["seconds"]) == {"dense", "torus2d"}
    assert "trying topk" not in capsys.readouterr().out


def test_one_that_does_better_than_predicted_does_not_keep_others_out(tmp_path):
    """All are predicted to take years; the first is measured to be faster, and is the standard for the others."""
    cluster = Cluster(RANKS // LOCAL, LOCAL, Link(1e6, 1e9), Link(1e6, 1e9), 1e9)
    with figures.kept_in(tmp_path):
        threads.run(RANKS, LOCAL, lambda grid: links.keep(cluster, MeasurementCache(grid)))
        choices()
    (times,) = figures.trials_of(figures.read(tmp_path))
    assert len(times["seconds"]) == 1, "their predictions are not to be believed to a factor of millions"


def test_a_lone_rank_and_a_lone_candidate_are_not_measured(capsys, tmp_path):
    with figures.kept_in(tmp_path):
        assert RECIPE.init(Spec(SIZE, Grid.lone())).choice == "dense"
        assert choices(recipes.auto(DENSITY, ["mstopk"])) == everyone("mstopk")
    assert capsys.readouterr().out == "" and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "seconds, chosen",
    [
        ({"dense": [1.0] * 5, "topk": [0.5] * 5}, "topk"),
        ({"dense": [1.0] * 5, "topk": [0.99] * 5}, "dense"),
        ({"dense": [1.0] * 5, "topk": [1.5] * 5}, "dense"),
        ({"dense": [1.0, 1.4, 0.7, 1.2, 0.9], "topk": [0.98, 1.5, 0.6, 0.9, 1.3]}, "dense"),
        (
            {"dense": [0.37, 0.40, 0.12], "topk": [0.18, 0.45, 0.11]},
            "topk",
        ),  # noise is not a reason to take the slower one
        ({"dense": [1.0, 2.0, 3.0, 4.0, 5.0], "topk": [0.8, 1.8, 2.8, 3.8, 4.8]}, "topk"),  # the machine became slower
        ({"dense": [0.9], "topk": [0.5]}, "topk"),
        ({"dense": [0.9] * 5, "torus2d": [1.0] * 7, "topk": [0.8] * 7}, "topk"),  # dense was dropped
        (  # beaten in every round, including the last, though only slightly in the median
            {"dense": [1.00, 2.00, 3.00, 4.0, 5.00, 4.0, 3.05, 2.0], "topk": [0.9, 1.9, 2.9, 3.9, 4.9, 3.9, 2.99, 1.9]},
            "topk",
        ),
        ({"dense": [9.0] * 5, "torus2d": [1.0, 1.1, 1.2], "topk": [1.1, 1.0, 1.2]}, "dense"),
    ],
)
def test_of_those_that_are_about_as_fast_the_first_is_taken(seconds, chosen):
    assert trials.fastest(seconds) == chosen


@pytest.mark.parametrize(
    "seconds, left",
    [
        ({"dense": [], "topk": []}, ["dense", "topk"]),
        ({"dense": [1.0], "topk": [9.0]}, ["dense", "topk"]),  # one round may have been disturbed
        ({"dense": [1.0, 1.1], "topk": [9.0, 9.1]}, ["dense"]),
        ({"dense": [1.0, 1.1], "topk": [9.0, 1.9]}, ["dense", "topk"]),
        ({"dense": [1.0] * (trials.ENOUGH - 1), "topk": [1.5] * (trials.ENOUGH - 1)}, ["dense", "topk"]),
        ({"dense": [1.0] * trials.ENOUGH, "topk": [1.5] * trials.ENOUGH}, ["dense"]),
        (
            {"dense": [1.0, 2.0, 1.5, 1.2, 1.1, 1.3, 1.6, 1.2], "topk": [1.3, 1.7, 1.6, 1.0, 1.2, 1.1, 1.4, 1.5]},
            ["dense", "topk"],
        ),
    ],
)
def test_one_that_was_disturbed_once_is_tried_again(seconds, left):
    assert trials.still_in_running(seconds) == left


@pytest.mark.parametrize(
    "best, predicted, left",
    [
        ({"dense": 9.0}, {"dense": 1.0}, ["dense"]),
        ({"dense": 9.0, "topk": 1.0}, {"dense": 8.0, "topk": 2.0}, ["topk"]),
        ({"dense": 9.0, "topk": 1.0}, {"dense": 1.5, "topk": 2.0}, ["dense", "topk"]),  # was it disturbed?
        ({"dense": 1.9, "topk": 1.0}, {"dense": 8.0, "topk": 0.1}, ["dense", "topk"]),  # was topk?
        ({"dense": 9.0, "topk": 5.0}, {"dense": 9.0, "topk": 0.1}, ["dense", "topk"]),  # topk was
    ],
)
def test_only_who_is_far_behind_as_was_foretold_is_not_timed_at_length(best, predicted, left):
    assert trials.worth_rounds(best, predicted) == left


@pytest.mark.parametrize(
    "in_flight, fastest, at_once",
    [(1, 0.01, 1), (3, 0.01, 3), (4, 0.1, 4), (17, 0.1, 4), (17, 0.14, 2), (17, 0.3, 1), (17, 9.0, 1), (3, 0.0, 3)],
)
def test_fewer_are_tried_at_once_where_one_takes_long(in_flight, fastest, at_once):
    assert trials.at_once(Spec(SIZE, Grid.lone(), in_flight=in_flight), fastest, budget=4.0) == at_once


def test_it_tries_as_many_at_once_as_are_in_flight_up_to_a_bound(tmp_path, capsys):
    recipe = recipes.auto(DENSITY, budget=1.0)  # plenty with the cluster's figures below

    def one_rank(grid):
        return [recipe.init(Spec(SIZE, grid, in_flight=in_flight)).choice for in_flight in (1, 3, 4, 17)]

    cluster = Cluster(RANKS // LOCAL, LOCAL, LINK, LINK, 1e9)
    with figures.kept_in(tmp_path):
        threads.run(RANKS, LOCAL, lambda grid: links.keep(cluster, MeasurementCache(grid)))
        chosen = threads.run(RANKS, LOCAL, one_rank)
    assert len({tuple(each) for each in chosen}) == 1
    one, three, four = (each["sent"] for each in figures.trials_of(figures.read(tmp_path)))
    for name in set(one) & set(three) & set(four):
        assert one[name] == three[name] == four[name], "bytes are those of one vector"
    printed = capsys.readouterr().out
    assert [text in printed for text in ("for 3 at once", "for 4 at once", "for 17 at once")] == [True, True, False]


# ---- what is stored ----


@pytest.mark.thorough
def test_an_equal_vector_is_not_tried_again_and_another_one_is(tmp_path, capsys):
    with figures.kept_in(tmp_path):
        for size, dtype, density in ((100, "float32", 0.1), (101, "float32", 0.1), (100, "float16", 0.1)):
            for _ in range(2):
                choices(recipes.auto(density, budget=0.0), size, tf.as_dtype(dtype))
        choices(recipes.auto(0.2, budget=0.0), 100)
        choices(recipes.auto(0.2, budget=0.5), 100)
    printed = capsys.readouterr().out
    assert len(figures.trials_of(figures.read(tmp_path))) == 4
    assert printed.count("selection ...") == 1, "the cluster is measured once"
    assert printed.count("a node sends") == 4


def test_a_file_that_holds_nothing_of_it_is_added_to(changed, capsys):
    with changed():
        choices(size=SIZE + 1)
    assert "selection ..." not in capsys.readouterr().out


def without_rounds(content):
    for times in figures.trials_of(content):
        times["seconds"] = {"dense": []}


def of_another_recipe(content):
    for times in figures.trials_of(content):
        times["seconds"] = {"bogosort": [1.0]}


def in_the_quick_tier(count, *rows):
    """Rows of parameters; the first `count` are in the quick tier."""
    return [pytest.param(*row, marks=[] if number < count else pytest.mark.thorough) for number, row in enumerate(rows)]


@pytest.mark.parametrize(
    "change, told",
    in_the_quick_tier(
        2,
        (
            lambda content: content["figures"]["cluster"]["across"].update(latency=-1),
            "expected the figures of a cluster",
        ),
        (lambda content: "no JSON", "Expecting value"),
        (lambda content: content | {"format": "another 2"}, "got 'another 2'"),
        (lambda content: content | {"cluster": {"hosts": ["elsewhere"]}}, "elsewhere"),
        (lambda content: content | {"since": time.time() - KEPT_FOR - 60}, "figures are 7 days old"),
        (lambda content: content | {"figures": []}, "expected figures by subject"),
        (lambda content: content["figures"]["cluster"].update(memory=-1), "expected the figures of a cluster"),
        (without_rounds, "expected the times of trials"),
        (of_another_recipe, "expected the times of trials"),
    ),
)
def test_a_file_that_cannot_be_used_is_said_to_be_so_and_written_anew(changed, tmp_path, change, told, capsys):
    with changed(change):
        assert len(set(choices())) == 1
        printed = capsys.readouterr().err
        assert "clusters/" in printed and "is not used" in printed and told in printed
        (tmp_path / "changed").rename(tmp_path / "again")
    with figures.kept_in(tmp_path / "again"):
        choices()
    printed = "".join(capsys.readouterr())
    assert "is not used" not in printed and "trying" not in printed and not list(tmp_path.glob("**/*.tmp"))


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with figures.kept_in(tmp_path / "file"):
        chosen = choices()
        assert choices() == chosen == everyone(chosen[0])
    printed = capsys.readouterr()
    assert "could not be written, so the next run will measure again" in printed.err
    assert printed.out.count("a node sends") == 1


def test_other_ranks_get_what_the_first_one_knows(tmp_path):
    def one_rank(grid):
        cache = MeasurementCache(grid)
        cache.write("subject", {"by": grid.world.rank, "exactly": [0.1, 1 / 3, 1e-300]})
        return cache.read("subject"), cache.read("nothing")

    with figures.kept_in(tmp_path):
        assert threads.run(3, 1, one_rank) == [({"by": 0, "exactly": [0.1, 1 / 3, 1e-300]}, None)] * 3


# ---- trials leave nothing behind ----


def test_trials_as_graphs_free_their_states_and_touch_no_random_numbers():
    spec, names, made = Spec(trials.LARGE, Grid.lone(), name="freed"), [], []

    def noting(create, **how):
        variable = create(**how)
        made.append(weakref.ref(variable))
        return variable

    tf.random.set_seed(1)
    expected = tf.random.normal([3]).numpy()
    tf.random.set_seed(1)
    with tf.variable_creator_scope(noting):
        times = trials.run_trials(RECIPE.candidates, spec, dict.fromkeys(CANDIDATES, 0.0), 2, 0.0, names.append)
    np.testing.assert_array_equal(tf.random.normal([3]), expected)
    assert set(times.seconds) == set(CANDIDATES) == {text.split()[1] for text in names}
    assert all(len(rounds) >= 1 and min(rounds) > 0 for rounds in times.seconds.values())
    assert made and all(variable() is None for variable in made)


def test_measuring_a_training_makes_no_difference_to_the_choice():
    assert describe(timed(RECIPE)) == describe(RECIPE)


@pytest.mark.parametrize("first, names", [("dense", "AllReduce"), ("topk", "Compressed/ErrorFeedback/TopK")])
def test_telemetry_names_what_was_chosen(first, names):
    recipe = timed(recipes.auto(DENSITY, [first, "torus2d"]))
    for each in (recipe, recipes.schedule([(0, recipe)])):
        assert part_names(each.running(each.init(Spec(SIZE, Grid.lone())))[0]) == names


def test_on_one_node_nothing_is_said_of_a_network(tmp_path, capsys):
    with figures.kept_in(tmp_path):
        threads.run(2, 2, lambda grid: recipes.auto(DENSITY, ["dense", "topk"], budget=0.0).init(Spec(SIZE, grid)))
    printed = capsys.readouterr().out
    assert "as fast as" in printed and "sends" not in printed


# ---- description and errors ----


def test_a_schedule_names_the_choices_of_its_stages():
    schedule = recipes.schedule([(0, RECIPE), (2, recipes.dense())])
    assert schedule.decided(schedule.init(Spec(SIZE, Grid.lone()))) == ["dense", None]
    fixed = recipes.schedule([(0, recipes.dense())])
    assert fixed.decided(fixed.init(Spec(SIZE, Grid.lone()))) is None


def test_it_sends_all_where_all_candidates_do():
    assert recipes.auto(DENSITY, ["dense", "torus2d"]).sends_all and not RECIPE.sends_all


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda: recipes.auto(lambda step: 0.1), "a density that changes with the step.*recipes.schedule"),
        (lambda: recipes.auto(0.0), r"density in \(0, 1\]"),
        (
            lambda: recipes.auto(0.1, ["dense", "tree"]),
            "candidates from dense, torus2d, topk, mstopk, dropping, hitopk, got 'tree'",
        ),
        (lambda: recipes.auto(0.1, ["dense", "dense"]), "distinct candidates"),
        (lambda: recipes.auto(0.1, []), "distinct candidates"),
        (lambda: recipes.auto(0.1, budget=-1.0), "budget of at least 0 seconds, got -1"),
        (lambda: recipes.auto(0.1, wire_dtype="int8"), "'float32', 'float16' or 'bfloat16'"),
        (lambda: Auto(0.1, (("bogosort", recipes.dense()),)), "distinct candidates from dense, .*bogosort"),
        (lambda: Hierarchical(RECIPE), "Auto cannot work inside Hierarchical"),
    ],
)
def test_what_cannot_be_is_refused(make, told):
    with pytest.raises(ValueError, match=told):
        make()
