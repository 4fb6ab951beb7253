"""Weights that are written between two exchanges, with ranks that are threads: what waits is dropped by all or none."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import recipes
from hvd_sparse.exchange import state
from hvd_sparse.exchange.obeying import Obeying
from hvd_sparse.exchange.plan import make_plan
from hvd_sparse.exchange.planned import PlannedExchange
from hvd_sparse.optimizers import written
from tests import threads

RECIPES = {
    "topk": lambda: recipes.topk(0.25),
    "hitopk": lambda: recipes.hitopk(0.25),
    "sparcml": lambda: recipes.sparcml(0.25),
    "warmup": lambda: recipes.warmup(recipes.hitopk(0.25), 4),
}


class Rank:
    """A rank's exchange of a dense variable and of rows, and what it was told."""

    def __init__(self, grid, recipe):
        self.layer = keras.layers.Dense(4, use_bias=False)
        self.layer.build((6,))
        self.table = keras.Variable(np.zeros((5, 2), "f4"), name="table")
        variables = {"kernel": self.layer.kernel, "table": self.table}
        plan = make_plan(self.gradients(grid.world.rank), {name: each.shape for name, each in variables.items()})
        self.planned = PlannedExchange(recipe, plan, grid, "obeying", None, variables=variables)
        self.told = []
        self.obeying = Obeying(
            list(variables.values()),
            lambda: self.told.append("written"),
            grid.world,
            self.planned.name,
            self.planned.exchange_not_finite,
            functools.partial(state.drop, self.planned),
        )

    @staticmethod
    def gradients(rank):
        kernel = tf.constant(np.arange(24, dtype="f4").reshape(6, 4) + rank)
        rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([rank % 5]), tf.constant([5, 2]))
        return {"kernel": kernel, "table": rows}

    def step(self, rank):
        self.obeying.before_step()
        return self.planned.exchange(self.gradients(rank))["kernel"].numpy()

    def waiting(self):
        return state.residual_sum(self.planned).residuals.get("kernel", np.zeros(1))


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(("ranks", "local_size"), [(1, 1), (2, 1), (4, 2), (3, 3)])
def test_all_drop_what_waits_and_then_exchange_their_gradients(name, ranks, local_size):
    def one_rank(grid):
        rank, fresh = Rank(grid, RECIPES[name]()), Rank(grid, RECIPES[name]())
        rank.step(grid.world.rank)
        waited = np.any(rank.waiting())
        rank.layer.set_weights([np.zeros((6, 4), "f4")])
        found, expected = rank.step(grid.world.rank), fresh.step(grid.world.rank)
        return waited, rank.told, rank.obeying.watch.weights.numpy(), found, expected

    for waited, told, flagged, found, expected in threads.run(ranks, local_size, one_rank):
        assert waited or name == "warmup"  # it begins with a high density
        assert told == ["written"] and not flagged
        if name != "warmup":  # its steps go on
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("which", [0, 1])
def test_a_write_on_one_rank_is_an_error_on_all_and_changes_nothing(name, which):
    def one_rank(grid):
        rank = Rank(grid, RECIPES[name]())
        rank.step(grid.world.rank)
        before = rank.waiting()
        if grid.world.rank == which:
            written.note([rank.table])
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            rank.step(grid.world.rank)
        np.testing.assert_array_equal(rank.waiting(), before)
        return str(error.value)

    for told in threads.run(2, 1, one_rank):
        assert "written since the last step" in told and "hvd.broadcast_variables" in told


def test_a_nan_is_still_reported_as_one():
    def one_rank(grid):
        rank = Rank(grid, recipes.topk(0.25))
        gradients = {**rank.gradients(0), "kernel": tf.fill([6, 4], float("nan") if grid.world.rank else 0.0)}
        with pytest.raises(tf.errors.InvalidArgumentError, match="NaN or an infinity: .* on rank 1"):
            rank.planned.exchange(gradients)

    threads.run(2, 1, one_rank)


def test_what_is_saved_does_not_belong_to_other_weights():
    def one_rank(grid):
        rank = Rank(grid, recipes.topk(0.25))
        rank.step(grid.world.rank)
        rank.layer.set_weights([np.zeros((6, 4), "f4")])
        rank.obeying.settle()
        return rank.waiting()

    for waiting in threads.run(2, 1, one_rank):
        assert not waiting.any()


def test_only_variables_of_the_exchange_are_watched():
    grid = threads.grids(1, 1)[0]
    rank = Rank(grid, recipes.topk(0.25))
    written.note([keras.Variable(0.0)])
    assert rank.told == [] and not written.noted([rank.table])
    written.note([rank.table])
    assert rank.told == ["written"] and written.noted([rank.layer.kernel])
