"""Gradient dropping of vectors that consist of variables: columns and local thresholds, also of shards."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import recipes
from hvd_sparse.aggregators import Hierarchical
from hvd_sparse.compression.quantizers import OneBit
from hvd_sparse.compression.thresholds import SampledThreshold
from hvd_sparse.spec import Segment, Spec, describe
from tests import simulation, threads
from tests.gpu import reference
from tests.simulation import Coding, Shape, same_bits

SEGMENTS = tuple(
    Segment(*each)
    for each in (("kernel", (3, 3, 4, 8)), ("bias", (8,)), ("scale", ()), ("embedding", (200, 16)), ("row", (1, 30)))
)
SIZE = sum(segment.size for segment in SEGMENTS)
DENSITY = 0.05
SHAPES = [(1, 1), (4, 2), pytest.param(6, 3, marks=pytest.mark.thorough)]


def drawn(rank, step):
    """Variables of very different scales."""
    random = np.random.default_rng([rank, step])
    pieces = [random.standard_normal(each.size) * 10.0 ** (2 * number) for number, each in enumerate(SEGMENTS)]
    return np.concatenate(pieces).astype(np.float32)


def exchanged(recipe, ranks, local_size):
    """The means and residuals of two steps."""

    def one_rank(grid):
        state, found = recipe.init(Spec(SIZE, grid, segments=SEGMENTS)), []
        for step in range(2):
            mean = recipe.aggregate(tf.constant(drawn(grid.world.rank, step)), state).numpy()
            found.append((mean, recipe.residual(state).numpy()))
        return found

    return threads.run(ranks, local_size, one_rank)


def check(recipe, simulate, select, ranks, local_size, coding=None):
    """Compares every mean and every residual, bit for bit."""
    simulated = simulate(Shape(ranks, local_size), SIZE, select, DENSITY)
    simulated.coding = coding
    found = exchanged(recipe, ranks, local_size)
    for step in range(2):
        expected = simulated.step([drawn(rank, step) for rank in range(ranks)])
        for rank in range(ranks):
            same_bits(found[rank][step][0], expected)
            same_bits(found[rank][step][1], simulated.residual[rank])


@pytest.mark.parametrize("ranks, local_size", SHAPES)
@pytest.mark.parametrize("kind", ["flat", "by nodes"])
def test_each_column_of_each_variable_has_its_own_mean(kind, ranks, local_size):
    """Bit for bit, wherever a shard cuts a variable."""
    recipe = recipes.dropping(DENSITY, quantizer=OneBit("column"))
    recipe = recipe if kind == "flat" else Hierarchical(recipe)
    made = simulation.Flat if kind == "flat" else simulation.Hierarchical
    check(recipe, made, simulation.sampled(), ranks, local_size, Coding(OneBit("column"), SEGMENTS))


def by_variable(total, _, seed):
    """The selection of each variable, with its own sample."""
    found, begin = [], 0
    for number, segment in enumerate(SEGMENTS):
        piece = total[begin : begin + segment.size]
        kept = simulation.kept(DENSITY, segment.size)
        found.append(begin + reference.sampled(piece, kept, 0.001, seed + (number << 48)))
        begin += segment.size
    return np.concatenate(found)


@pytest.mark.parametrize("ranks, local_size", SHAPES)
def test_each_variable_is_chosen_from_as_if_it_were_alone(ranks, local_size):
    """Bit for bit."""
    check(recipes.dropping(DENSITY, scope="variable"), simulation.Flat, by_variable, ranks, local_size)


@pytest.mark.parametrize("ranks, local_size", SHAPES)
def test_each_variable_has_its_own_threshold_and_sends_something(ranks, local_size):
    """A single threshold for all would send nothing of the small ones."""

    def sent(scope):
        recipe = Hierarchical(recipes.dropping(DENSITY, scope=scope))
        (mean, _), _ = exchanged(recipe, ranks, local_size)[0]
        ends = np.cumsum([segment.size for segment in SEGMENTS])
        return np.array([np.count_nonzero(piece) for piece in np.split(mean, ends[:-1])])

    nodes = ranks // local_size
    sizes = np.array([segment.size for segment in SEGMENTS])
    least = np.maximum(1, np.round(DENSITY * sizes) // 2 - local_size)
    local = sent("variable")
    assert (local >= least).all() and (local <= nodes * (2 * DENSITY * sizes + 3 * local_size)).all()
    assert (sent("global") == 0).any()


@pytest.mark.parametrize("culprit", [0, 9])
@pytest.mark.parametrize("quantizer", [None, OneBit("column")])
def test_a_rank_whose_shard_is_empty_is_told_by_the_others(culprit, quantizer):
    """Ten ranks per node, and shards of nine elements."""
    recipe = Hierarchical(recipes.dropping(DENSITY, quantizer=quantizer))

    def one_rank(grid):
        state = recipe.init(Spec(81, grid))
        step = tf.function(lambda vector: recipe.aggregate(vector, state))
        vector = drawn(grid.world.rank, 0)[:81]
        good = step(tf.constant(vector)).numpy()
        vector[80] = np.nan if grid.world.rank == culprit else vector[80]
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {culprit}"):
            step(tf.constant(vector))
        return np.count_nonzero(good)

    assert set(threads.run(10, 10, one_rank)) == {9}


def test_a_density_that_changes_is_that_of_each_variable():
    part = SampledThreshold(lambda step: tf.where(step < 1, 0.5, 0.01), scope="variable", sample=1.0)
    (found,) = threads.run(1, 1, lambda grid: part.create(Spec(SIZE, grid, segments=SEGMENTS)))
    sizes = [segment.size for segment in SEGMENTS]
    assert list(found.kept(part.density)) == [144, 4, 1, 1600, 15]
    found.step.assign(5)
    assert list(found.kept(part.density)) == [max(1, round(0.01 * size)) for size in sizes]


def test_the_one_threshold_goes_by_the_name_that_checkpoints_have():
    assert "scope" not in describe(SampledThreshold(0.1)) and "scope" in describe(
        SampledThreshold(0.1, scope="variable")
    )


def test_no_other_scopes():
    with pytest.raises(ValueError, match="scope of 'global' or 'variable', got 'layer'"):
        recipes.dropping(0.1, scope="layer")
    with pytest.raises(ValueError, match="encodes float32 values, got a compressor with wire_dtype 'float16'"):
        recipes.dropping(0.1, "float16", quantizer=OneBit())
