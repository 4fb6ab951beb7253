"""Properties of the exchange, on ranks that are threads: any number of ranks, any node shape, any size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse import costs
from hvd_sparse.aggregators import commit
from hvd_sparse.spec import Spec
from hvd_sparse.tuning import links
from hvd_sparse.tuning.cache import MeasurementCache
from tests import members, threads
from tests.members import AGGREGATORS
from tests.simulation import DTYPES, Shape, constants, floats, integers, same_bits

SPARSE = [name for name, recipe in AGGREGATORS.items() if recipe.sparse]
EXACT = [name for name in SPARSE if AGGREGATORS[name].exact and not AGGREGATORS[name].momentum]
ROUNDED = [name for name in SPARSE if not AGGREGATORS[name].exact]
WIRED = [name for name in SPARSE if AGGREGATORS[name].wires]
DENSE = [name for name, recipe in AGGREGATORS.items() if not recipe.sparse]


@pytest.fixture(scope="module", autouse=True)
def every_grid_is_known():
    """Measuring two dozen grids of threads would take a minute and not change the result: auto tries its candidates."""
    link = costs.Link(1e-5, 1e9)
    for ranks in range(2, 10):
        for local_size in (n for n in range(1, ranks + 1) if ranks % n == 0):
            cluster = costs.Cluster(ranks // local_size, local_size, link, link, 1e9)
            threads.run(ranks, local_size, lambda grid, cluster=cluster: links.keep(cluster, MeasurementCache(grid)))


class Run(NamedTuple):
    """The input of several exchanges: `vectors` [steps][P] of one size."""

    shape: Shape
    size: int
    density: float
    dtype: str
    wire: str
    vectors: list[list[np.ndarray]]


@st.composite
def runs(draw, fills=(integers, floats, constants), dtypes=tuple(DTYPES), wires=tuple(DTYPES)):
    ranks = draw(st.integers(1, 9))
    shape = Shape(ranks, draw(st.sampled_from([n for n in range(1, ranks + 1) if ranks % n == 0])))
    size = draw(st.one_of(st.integers(1, 12), st.integers(1, 300)))
    density = draw(st.one_of(st.just(1.0), st.floats(0.002, 0.3)))
    dtype, wire = draw(st.sampled_from(dtypes)), draw(st.sampled_from(wires))
    fill = draw(st.sampled_from(fills))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    steps = draw(st.integers(1, 4))
    vectors = [[fill(random, size, ranks).astype(DTYPES[dtype]) for _ in range(ranks)] for _ in range(steps)]
    return Run(shape, size, density, dtype, wire, vectors)


def exchange(recipe, run, epochs=None):
    """Means [steps, P, size] and residuals [steps, P, size] of the library's exchanges of a run."""

    def one_rank(grid):
        state = recipe.init(Spec(run.size, grid, tf.as_dtype(run.dtype)))
        means, left = [], []
        for step, vectors in enumerate(run.vectors):
            recipe.set_epoch(state, epochs[step] if epochs else 0)
            means.append(recipe.aggregate(tf.constant(vectors[grid.world.rank]), state).numpy())
            left.append(recipe.residual(state).numpy())
        return means, left

    results = threads.run(run.shape.ranks, run.shape.local_size, one_rank)
    means, left = (np.stack([np.stack(result[part]) for result in results], axis=1) for part in (0, 1))
    return means, left


def on_every_rank(mean, ranks):
    return np.broadcast_to(mean, (ranks, *mean.shape)).copy()


def check_against_simulation(name, run):
    """Compares every mean and every residual of every step, bit for bit."""
    means, left = exchange(AGGREGATORS[name].make(run.density, run.wire), run)
    simulated = AGGREGATORS[name].simulate(run.shape, run.size, run.density, run.dtype, run.wire)
    for vectors, mean, residuals in zip(run.vectors, means, left, strict=True):
        same_bits(mean, on_every_rank(simulated.step(vectors), run.shape.ranks))
        same_bits(residuals, simulated.residual)


@pytest.mark.parametrize("name", SPARSE)
@given(run=runs())
def test_sparse_results_and_residuals_are_the_simulations_to_the_bit(name, run):
    check_against_simulation(name, run)


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("ranks", [4, *(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (6, 8))])
def test_every_shape_of_the_grid_adds_floats_in_rank_order(name, ranks):
    """There are enough ranks in each group for another order of the additions to show."""
    for local_size in (n for n in range(1, ranks + 1) if ranks % n == 0):
        for size, density in ((1, 1.0), (100, 1.0), (100, 0.3)):
            random = np.random.default_rng(size)
            vectors = [[floats(random, size, ranks).astype(np.float32) for _ in range(ranks)] for _ in range(2)]
            run = Run(Shape(ranks, local_size), size, density, "float32", "float32", vectors)
            check_against_simulation(name, run)


@pytest.mark.parametrize("name", DENSE)
@given(run=runs())
def test_dense_results_are_the_simulations_within_the_rounding_of_sums(name, run):
    means, left = exchange(AGGREGATORS[name].make(run.density, run.wire), run)
    simulated = AGGREGATORS[name].simulate(run.shape, run.size, run.density, run.dtype, run.wire)
    assert not left.any()
    for vectors, mean in zip(run.vectors, means, strict=True):
        same_bits(mean, on_every_rank(mean[0], run.shape.ranks))
        difference = np.abs(mean[0].astype(np.float64) - simulated.step(vectors).astype(np.float64))
        assert (difference <= simulated.tolerance(vectors)).all()


@pytest.mark.parametrize("name", DENSE)
@given(run=runs(fills=[integers], dtypes=["float32", "float16"], wires=["float32", "float16"]))
def test_dense_results_on_small_integers_are_the_simulations_to_the_bit(name, run):
    means, _ = exchange(AGGREGATORS[name].make(run.density, run.wire), run)
    simulated = AGGREGATORS[name].simulate(run.shape, run.size, run.density, run.dtype, run.wire)
    for vectors, mean in zip(run.vectors, means, strict=True):
        same_bits(mean, on_every_rank(simulated.step(vectors), run.shape.ranks))


@pytest.mark.parametrize("name", DENSE + EXACT)
@given(run=runs(fills=[integers], dtypes=["float32"], wires=["float32"]))
def test_what_went_in_is_what_came_out_and_what_is_kept(name, run):
    means, left = exchange(AGGREGATORS[name].make(run.density, run.wire), run)
    came_out = run.shape.ranks * means[:, 0].sum(axis=0) + left[-1].sum(axis=0)
    np.testing.assert_array_equal(came_out, np.sum(run.vectors, axis=(0, 1)))


@pytest.mark.parametrize("name", ROUNDED)
@given(run=runs(fills=[integers, floats], dtypes=["float32"]))
def test_what_rounding_takes_away_is_kept_but_for_the_rounding_of_float32(name, run):
    means, left = exchange(AGGREGATORS[name].make(run.density, run.wire), run)
    came_out = run.shape.ranks * means[:, 0].astype(np.float64).sum(axis=0) + left[-1].astype(np.float64).sum(axis=0)
    largest = np.abs(run.vectors).sum(axis=(0, 1)).max()  # no sum, scale or error in between is larger
    operations = 8 * len(run.vectors) * run.shape.ranks
    difference = came_out - np.sum(run.vectors, axis=(0, 1), dtype=np.float64)
    assert np.abs(difference).max() <= operations * 2.0**-24 * largest


@st.composite
def changes(draw, **options):
    """A run, the recipes of its epochs, and the epoch of each step."""
    run = draw(runs(**options))
    names = draw(st.lists(st.sampled_from(DENSE + EXACT), min_size=1, max_size=3))
    epochs = draw(st.lists(st.integers(0, len(names) - 1), min_size=len(run.vectors), max_size=len(run.vectors)))
    return run, names, epochs


@given(changes(fills=[integers], dtypes=["float32"], wires=["float32"]))
def test_nothing_is_lost_in_a_change_of_recipe(change):
    run, names, epochs = change
    means, left = exchange(members.switching(names, run.density, run.wire), run, epochs)
    came_out = run.shape.ranks * means[:, 0].sum(axis=0) + left[-1].sum(axis=0)
    np.testing.assert_array_equal(came_out, np.sum(run.vectors, axis=(0, 1)))


@given(changes(fills=[integers], dtypes=["float32", "float16"], wires=["float32"]))
def test_a_change_of_recipe_is_the_simulations_to_the_bit(change):
    run, names, epochs = change
    means, left = exchange(members.switching(names, run.density, run.wire), run, epochs)
    simulated = members.simulate_switching(names, run.shape, run.size, run.density, run.dtype, run.wire)
    for epoch, vectors, mean, residuals in zip(epochs, run.vectors, means, left, strict=True):
        simulated.stage = epoch
        same_bits(mean, on_every_rank(simulated.step(vectors), run.shape.ranks))
        same_bits(residuals, simulated.residual)


@pytest.mark.parametrize("name", [name for name in EXACT if AGGREGATORS[name].first(1.0) == 1.0])
@given(run=runs(fills=[integers], dtypes=["float32"], wires=["float32"]))
def test_all_of_the_gradient_is_the_dense_mean(name, run):
    means, left = exchange(AGGREGATORS[name].make(1.0, run.wire), run)
    np.testing.assert_array_equal(means[:, 0], np.sum(run.vectors, axis=1) / run.shape.ranks)
    assert not left.any()


@pytest.mark.parametrize("name", [name for name in EXACT if AGGREGATORS[name].first(1.0) == 1.0])
@given(run=runs(fills=[floats], dtypes=["float32"], wires=["float32"]))
def test_nodes_of_one_rank_and_one_node_differ_only_in_the_order_of_sums(name, run):
    """If the whole gradient is sent, the shape of the grid changes the mean only by rounding."""
    recipe = AGGREGATORS[name].make(1.0, run.wire)
    tolerance = AGGREGATORS["dense"].simulate(run.shape, run.size, 1.0, run.dtype, run.wire).tolerance
    flat, _ = exchange(recipe, run._replace(shape=Shape(run.shape.ranks, 1)))
    shaped, _ = exchange(recipe, run)
    for vectors, one, other in zip(run.vectors, flat, shaped, strict=True):
        assert (np.abs(one[0] - other[0]) <= tolerance(vectors)).all()


@pytest.mark.parametrize("name", AGGREGATORS)
@given(run=runs(fills=[floats]))
def test_the_bytes_that_are_told_are_those_that_are_sent(name, run):
    recipe = AGGREGATORS[name].make(run.density, run.wire)

    def one_rank(grid):
        state = recipe.init(Spec(run.size, grid, tf.as_dtype(run.dtype)))
        before = threads.sent(grid)
        told = recipe.exchange(tf.constant(run.vectors[0][grid.world.rank]), state).metrics
        counted = {"inside": 0, "across": 0}
        for to, count in threads.sent(grid).items():
            counted["inside" if to in grid.node.ranks else "across"] += count - before.get(to, 0)
        return {"inside": int(told["bytes_inside"]), "across": int(told["bytes_across"])}, counted

    for told, counted in threads.run(run.shape.ranks, run.shape.local_size, one_rank):
        assert told == counted


@pytest.mark.parametrize("name", AGGREGATORS)
@given(
    run=runs(fills=[integers], dtypes=["float32"], wires=["float32"]),
    where=st.integers(0, 2**16),
    poison=st.sampled_from([np.nan, np.inf, -np.inf]),
)
def test_a_gradient_that_is_not_finite_stops_all_ranks_and_spoils_nothing(name, poison, run, where):
    recipe = AGGREGATORS[name].make(run.density, run.wire)
    poisoned = where % run.shape.ranks

    def one_rank(grid):
        state = recipe.init(Spec(run.size, grid))
        rank = grid.world.rank
        recipe.aggregate(tf.constant(run.vectors[0][rank]), state)
        before = [variable.numpy() for variable in state.variables]
        broken = run.vectors[0][rank].copy()
        if rank == poisoned:
            broken[where % run.size] = poison
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            recipe.aggregate(tf.constant(broken), state)
        after = [variable.numpy() for variable in state.variables]
        for one, other in zip(before, after, strict=True):
            same_bits(other, one)
        return str(raised.value)

    for text in threads.run(run.shape.ranks, run.shape.local_size, one_rank):
        assert f"rank {poisoned}" in text and "Nothing was written" in text


@pytest.mark.parametrize("name", AGGREGATORS)
def test_ranks_ask_whose_fault_it_is_only_where_there_is_one(name, monkeypatch):
    """The exchanged data itself shows that all is well, except for sums in SparCML's streams."""
    asked = []
    carried = threads.ThreadCommunicator._allreduce

    def heard(self, tensor, op, called):
        asked.extend([called] if called.endswith(".commit") else [])
        return carried(self, tensor, op, called)

    monkeypatch.setattr(threads.ThreadCommunicator, "_allreduce", heard)
    recipe = AGGREGATORS[name].make(0.1, "float32")

    def one_rank(grid):
        state = recipe.init(Spec(40, grid))
        recipe.aggregate(tf.ones([40]), state)
        before = len(asked) if grid.world.rank == 0 else None
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank 3"):
            recipe.aggregate(tf.fill([40], np.nan if grid.world.rank == 3 else 1.0), state)
        return before

    before = threads.run(4, 2, one_rank)[0]
    assert (before > 0) == name.startswith("sparcml")
    assert len(asked) == (8 if name.startswith("sparcml") else 4)


@pytest.mark.parametrize("name", DENSE)
def test_a_sum_over_the_ranks_that_overflows_stops_all_of_them(name):
    recipe = AGGREGATORS[name].make(1.0, "float32")

    def one_rank(grid):
        state = recipe.init(Spec(9, grid))
        with pytest.raises(tf.errors.InvalidArgumentError, match="in the sum over the ranks, of whom none has any"):
            recipe.aggregate(tf.fill([9], 3e38), state)

    threads.run(2, 1, one_rank)


@pytest.mark.parametrize("name", WIRED)
@given(run=runs(fills=[integers], dtypes=["float32"], wires=["float16"]))
def test_a_value_that_the_wire_cannot_carry_stops_all_ranks_and_spoils_nothing(name, run):
    recipe = AGGREGATORS[name].make(run.density, run.wire)

    def one_rank(grid):
        state = recipe.init(Spec(run.size, grid))
        with pytest.raises(tf.errors.InvalidArgumentError, match="Nothing was written"):
            recipe.aggregate(tf.constant(run.vectors[0][grid.world.rank] + 1e6), state)
        assert not recipe.residual(state).numpy().any()

    threads.run(run.shape.ranks, run.shape.local_size, one_rank)


@given(run=runs(fills=[integers], dtypes=["float32"], wires=["float32"]), order=st.randoms(use_true_random=False))
def test_several_vectors_in_flight_are_committed_together(run, order):
    """One of three vectors is not finite on one rank: none of the three is written."""
    recipe = AGGREGATORS["hitopk"].make(run.density, run.wire)
    broken_rank, broken_vector = order.randrange(run.shape.ranks), order.randrange(3)

    def one_rank(grid):
        states = [recipe.init(Spec(run.size, grid, name=f"vector{number}")) for number in range(3)]
        vectors = [run.vectors[0][grid.world.rank].copy() for _ in states]
        if grid.world.rank == broken_rank:
            vectors[broken_vector][0] = np.nan
        exchanges = [recipe.exchange(tf.constant(vector), state) for vector, state in zip(vectors, states, strict=True)]
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            commit(exchanges, ["first", "second", "third"], grid.world, "commit")
        assert not any(recipe.residual(state).numpy().any() for state in states)
        return str(raised.value)

    label = ["first", "second", "third"][broken_vector]
    for text in threads.run(run.shape.ranks, run.shape.local_size, one_rank):
        assert label in text and f"rank {broken_rank}" in text
