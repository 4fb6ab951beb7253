"""DCT-DP: thresholds of variables that are held for several steps, also of shards, and what overrides them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse import recipes
from hvd_sparse.aggregators import Compressed, Hierarchical
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.held import HeldThreshold, held_count
from hvd_sparse.spec import Segment, Spec
from tests import members, simulation, threads
from tests.gpu import reference
from tests.simulation import Shape, same_bits

SEGMENTS = tuple(
    Segment(*each) for each in (("kernel", (3, 3, 4, 8)), ("bias", (8,)), ("scale", ()), ("embedding", (200, 16)))
)
SIZE = sum(segment.size for segment in SEGMENTS)
ENDS = np.cumsum([segment.size for segment in SEGMENTS])[:-1]
SHAPES = [(1, 1), (4, 2), pytest.param(6, 3, marks=pytest.mark.thorough)]
DENSITY = 0.05
LOUD = {3: 0.01, 4: 0.01, 5: 30.0}  # how gradients shrink and grow while thresholds stay


def drawn(rank, step):
    """Variables of very different scales."""
    random = np.random.default_rng([rank, step])
    pieces = [random.standard_normal(each.size) * 10.0 ** (2 * number) for number, each in enumerate(SEGMENTS)]
    return (np.concatenate(pieces) * LOUD.get(step, 1.0)).astype(np.float32)


def clamped(state):
    return sum(int(variable) for variable in state.variables if "clamped" in variable.name)


def exchanged(recipe, ranks, local_size, steps=8):
    """The means and residuals of each rank and step, and how often its thresholds were overridden."""

    def one_rank(grid):
        state, found = recipe.init(Spec(SIZE, grid, segments=SEGMENTS)), []
        step = tf.function(lambda vector: recipe.aggregate(vector, state))
        for number in range(steps):
            mean = step(tf.constant(drawn(grid.world.rank, number))).numpy()
            found.append((mean, recipe.residual(state).numpy()))
        return found, clamped(state)

    return threads.run(ranks, local_size, one_rank)


def check(recipe, simulated, held, ranks, local_size):
    """Compares every mean, every residual and the number of overridden thresholds, bit for bit."""
    found = exchanged(recipe, ranks, local_size)
    for step in range(8):
        expected = simulated.step([drawn(rank, step) for rank in range(ranks)])
        for rank in range(ranks):
            same_bits(found[rank][0][step][0], expected)
            same_bits(found[rank][0][step][1], simulated.residual[rank])
    assert [count for _, count in found] == [held.clamped[rank] for rank in range(ranks)]
    return sum(held.clamped.values())


@pytest.mark.parametrize("ranks, local_size", SHAPES)
@pytest.mark.parametrize("kind", ["flat", "by nodes", "warming"])
def test_each_variable_has_a_threshold_until_it_is_taken_anew(kind, ranks, local_size):
    """Wherever a shard cuts a variable, and when the density changes."""
    held, recipe = simulation.Held(6, ENDS), recipes.dct(1.0 - DENSITY, life=6)
    shape = Shape(ranks, local_size)
    if kind == "by nodes":
        made = simulation.Hierarchical(shape, SIZE, held, DENSITY)
        overruled = check(Hierarchical(recipe), made, held, ranks, local_size)
    elif kind == "flat":
        overruled = check(recipe, simulation.Flat(shape, SIZE, held, DENSITY), held, ranks, local_size)
    else:
        stages = [(2, 0.5), (2, 0.2)]
        warming = recipes.warmup(recipe, 2, [density for _, density in stages])
        made = simulation.Warming(simulation.Flat(shape, SIZE, held, DENSITY), stages)
        overruled = check(warming, made, held, ranks, local_size)
    assert overruled > 0, "gradients fell and rose"


def taken(part, state, gradient):
    """Takes one step; returns what was sent and what remains."""
    selection = part.compress(tf.constant(gradient)[tf.newaxis], state)
    for variable, value in selection.updates:
        variable.assign(value)
    sent = np.zeros_like(gradient)
    sent[selection.slices.indices] = selection.slices.values
    return sent, selection.residual.numpy()


@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=4),
    density=st.floats(0.01, 1),
    kind=st.sampled_from(["gaussian", "ties", "zeros"]),
    seed=st.integers(0, 2**32),
)
def test_with_a_life_of_one_step_it_is_the_selection_by_its_definition(sizes, density, kind, seed):
    """All that reach the (N - floor(N eta))-th magnitude, including ties, but at most 4 k; and no zeros."""
    random = np.random.default_rng(seed)
    segments = tuple(Segment(str(number), (size,)) for number, size in enumerate(sizes))
    part = HeldThreshold(density, life=1)
    state = part.create(Spec(sum(sizes), members.alone(1).grid, segments=segments))
    for _ in range(2):
        gradient = random.standard_normal(sum(sizes)).astype(np.float32)
        gradient = {"gaussian": gradient, "ties": np.round(2 * gradient), "zeros": 0 * gradient}[kind] + np.float32(0)
        sent, left = taken(part, state, gradient)
        same_bits(np.where(sent != 0, sent, left), gradient)
        for piece, chosen in zip(*(np.split(each, np.cumsum(sizes)[:-1]) for each in (gradient, sent)), strict=True):
            k = held_count(density, piece.size)
            threshold = np.sort(np.abs(piece))[::-1][k - 1] if k < piece.size else 0
            wanted = np.flatnonzero((np.abs(piece) >= threshold) & (piece != 0))
            wanted = wanted if wanted.size <= 4 * k else reference.exact(piece, 4 * k)
            np.testing.assert_array_equal(np.flatnonzero(chosen), wanted)


@pytest.mark.parametrize(
    "density, size, count", [(0.01, 100, 1), (0.01, 101, 2), (0.43, 100, 43), (0.1, 1000, 100), (1, 7, 7), (1e-9, 9, 1)]
)
def test_k_is_what_is_left_when_the_rest_is_rounded_down(density, size, count):
    """And the same if the density is a tensor, which is a float32."""
    state = HeldThreshold(density).create(members.alone(size))
    assert [held_count(density, size)] == state.kept(density) == state.kept(lambda step: tf.constant(density)) == count


def test_a_step_that_is_skipped_leaves_thresholds_and_their_age_as_they_are():
    recipe = recipes.dct(0.9, life=2)
    state = threads.run(1, 1, lambda grid: recipe.init(Spec(SIZE, grid, segments=SEGMENTS)))[0]
    recipe.aggregate(tf.constant(drawn(0, 0)), state)
    before = [variable.numpy() for variable in state.variables]
    broken = drawn(0, 1)
    broken[SIZE // 2] = np.inf
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 0"):
        recipe.aggregate(tf.constant(broken), state)
    for variable, value in zip(state.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_what_was_not_sent_is_forgotten_in_steps_that_all_ranks_have_in_common():
    """About every fifth step; what is sent and what remains is then the gradient alone."""
    part = ErrorFeedback(HeldThreshold(0.1, life=3, drain=0.2, seed=4))

    def one_rank(grid):
        state, drained = part.create(Spec(SIZE, grid, segments=SEGMENTS)), []
        for number in range(60):
            gradient, waiting = drawn(grid.world.rank, number), state.residual.numpy()
            sent, left = taken(part, state, gradient)
            total = np.where(sent != 0, sent, left)
            drained.append(total.tobytes() == (gradient + np.float32(0)).tobytes())
            assert drained[-1] or total.tobytes() == (gradient + waiting).tobytes()
        return drained

    one, other = threads.run(2, 2, one_rank)
    assert one == other and one[0] and 5 <= sum(one[1:]) <= 20


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"a sparsity in \[0, 1\), got 1.0: 0.99 sends 1%"):
        recipes.dct(1.0)
    with pytest.raises(ValueError, match="a life of at least 1 step from one threshold to the next, got 0"):
        recipes.dct(life=0)
    with pytest.raises(ValueError, match=r"drain in \[0, 1\], the probability in each step, got -0.1"):
        recipes.dct(drain=-0.1)
    assert recipes.dct() == Compressed(ErrorFeedback(HeldThreshold(0.01, life=1000)))
