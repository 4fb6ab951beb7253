"""Rotating blocks: properties not covered by the table of recipes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import recipes
from hvd_sparse.aggregators import Hierarchical, RotatingBlocks
from hvd_sparse.compression.block import Block, Deal
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.quantizers import OneBit, TwoBits
from hvd_sparse.compression.selectors import TopK
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.spec import Spec
from hvd_sparse.transport.communicator import Grid
from tests import members, threads
from tests.aggregators.test_warmup import SIZE, trained, vector


def went_in(ranks, steps):
    return np.sum([vector(rank, step) for rank in range(ranks) for step in range(steps)], axis=0, dtype=np.float64)


def came_out(found):
    """The sum of all means, and of what all ranks keep after the last step."""
    means = len(found) * np.sum([mean for mean, *_ in found[0]], axis=0, dtype=np.float64)
    return means + np.sum([rank[-1][3] for rank in found], axis=0, dtype=np.float64)


@pytest.mark.parametrize("size, pieces, blocks", [(1, 1, 1), (7, 1, 3), (7, 3, 100), (60, 4, 3), (61, 7, 2), (5, 9, 2)])
def test_each_element_has_its_turn_once_in_a_cycle(size, pieces, blocks):
    deal = Deal(size, pieces, blocks)
    places = [deal.places(tf.constant(step, tf.int64)).numpy().ravel() for step in range(deal.cycle)]
    assert all((block >= 0).any() for block in places) and deal.cycle <= blocks
    assert [int(deal.count(tf.constant(step, tf.int64))) for step in range(deal.cycle)] == [
        (block >= 0).sum() for block in places
    ]
    found = np.concatenate(places)
    np.testing.assert_array_equal(np.sort(found[found >= 0]), np.arange(size))


@pytest.mark.parametrize("size, pieces, blocks", [(7, 3, 2), (60, 4, 3), (5, 9, 2)])
def test_what_is_taken_block_by_block_is_the_vector(size, pieces, blocks):
    deal, numbers, summed = Deal(size, pieces, blocks), tf.range(1.0, size + 1), np.zeros(size)
    for step in map(tf.constant, np.arange(deal.cycle)):
        _, values, _ = deal.take(numbers, None, step)
        summed += deal.spread(values, step, 1.0, tf.float32)
    np.testing.assert_array_equal(summed, numbers)


@pytest.mark.parametrize("ranks, local_size", [(1, 1), (2, 1), (4, 2), (5, 1), (6, 3), (7, 1)])
def test_after_a_cycle_all_has_been_sent(ranks, local_size):
    recipe = recipes.blocks(3, None)

    def one_rank(grid):
        state = recipe.init(Spec(SIZE, grid))
        steps = [tf.constant(vector(grid.world.rank, 0)), tf.zeros([SIZE]), tf.zeros([SIZE])]
        return sum(recipe.aggregate(step, state).numpy() for step in steps), recipe.residual(state).numpy()

    for mean, left in threads.run(ranks, local_size, one_rank):
        np.testing.assert_array_equal(mean, (went_in(ranks, 1) / ranks).astype(np.float32))
        assert not left.any()


@pytest.mark.parametrize("bits, bytes_of_six", [(None, 24), (1, 1 + 4), (2, 2 + 16)])
@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_bytes_are_those_of_two_blocks_whatever_the_number_of_nodes(bits, bytes_of_six, nodes):
    """Each rank sends what the block has of the other ranks' pieces, and then its own sum to the next of a ring."""
    size = 18 * nodes
    recipe = recipes.blocks(3, bits)

    def one_rank(grid):
        recipe_state = recipe.init(Spec(size, grid))
        return int(recipe.exchange(tf.ones([size]), recipe_state).metrics["bytes_across"])

    assert threads.run(nodes, 1, one_rank) == [2 * (nodes - 1) * (bytes_of_six + 1)] * nodes


@pytest.mark.parametrize("ranks, local_size", [(4, 2), (3, 1)])
def test_nothing_is_lost_from_stage_to_stage_and_dense_steps_are_exact(ranks, local_size):
    found = trained(recipes.warmup(recipes.blocks(6, 2), 2, [0.016, 0.0104], dense_steps=1), ranks, local_size, 9)
    np.testing.assert_array_equal(found[0][0][0], (went_in(ranks, 1) / ranks).astype(np.float32))
    np.testing.assert_allclose(came_out(found), went_in(ranks, 9), atol=1e-3)
    shard = SIZE // local_size
    for (_, selected, _, _), blocks in zip(found[0], (1, 2, 2, 3, 3, 6, 6), strict=False):
        assert abs(selected - shard / blocks) <= ranks // local_size


def test_a_dense_step_sends_what_owners_keep():
    """So a stage of density 1 after others leaves nothing behind."""
    recipe = recipes.blocks(2, 2)

    def one_rank(grid):
        state = recipe.init(Spec(SIZE, grid))
        means = [recipe.aggregate(tf.constant(vector(grid.world.rank, 0)), state)]
        kept = recipe.residual(state).numpy()
        means.append(recipe.at_density(1.0).aggregate(tf.zeros([SIZE]), state))
        return kept, recipe.residual(state).numpy(), np.sum(means, axis=0)

    found = threads.run(4, 2, one_rank)
    assert any(kept.any() for kept, *_ in found) and not any(left.any() for _, left, _ in found)
    np.testing.assert_allclose(4 * found[0][2], went_in(4, 1), atol=1e-4)


@pytest.mark.parametrize("others", [2, 6])
def test_what_owners_keep_goes_to_another_number_of_ranks(others):
    recipe = recipes.blocks(3, 2)
    owed = np.sum([rank[-1][3] for rank in trained(recipe, 4, 1, 4)], axis=0)

    def one_rank(grid):
        state = recipe.init(Spec(SIZE, grid))
        recipe.restore(state, tf.constant(owed))
        return recipe.residual(state).numpy()

    left = np.sum(threads.run(others, 1, one_rank), axis=0)
    np.testing.assert_allclose(left, owed, rtol=1e-6)


@pytest.mark.parametrize("bits", [None, 1, 2, 4])
def test_a_nan_on_one_rank_stops_all_and_nothing_is_written(bits):
    recipe = recipes.blocks(3, bits)

    def one_rank(grid):
        state = recipe.init(Spec(SIZE, grid))
        good, bad = vector(grid.world.rank, 0), vector(grid.world.rank, 1)
        if grid.world.rank == 2:
            bad[-1] = np.nan  # in another block than the one that is sent next
        recipe.aggregate(tf.constant(good), state)
        before = [variable.numpy() for variable in state.variables]
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank 2"):
            recipe.aggregate(tf.constant(bad), state)
        return all(np.array_equal(one, other) for one, other in zip(before, state.variables, strict=True))

    assert threads.run(4, 1, one_rank) == [True] * 4


def test_sums_that_the_wire_cannot_carry_stop_all_ranks():
    recipe = recipes.blocks(1, None, "float16")

    def one_rank(grid):
        state = recipe.init(Spec(8, grid))
        with pytest.raises(tf.errors.InvalidArgumentError, match="the sum over the ranks"):
            recipe.aggregate(tf.fill([8], 4e4), state)
        return recipe.residual(state).numpy().any()

    assert not any(threads.run(2, 1, one_rank))


def test_updates_wait_in_steps_without_an_exchange():
    """`every` counts on `holding`, which must not lose what owners keep."""
    recipe = Hierarchical(RotatingBlocks(LocalUpdates(ErrorFeedback(Block(3, quantizer=TwoBits())), ahead=True)))
    held = recipe.holding()

    def one_rank(grid):
        state = recipe.init(members.alone(SIZE)._replace(grid=grid))
        recipe.aggregate(tf.constant(vector(grid.world.rank, 0)), state)
        before = recipe.residual(state).numpy()
        held.aggregate(tf.constant(vector(grid.world.rank, 1)), state)
        return recipe.residual(state).numpy() - before, held.residual(state).numpy() - recipe.residual(state).numpy()

    for rank, (added, differing) in enumerate(threads.run(4, 1, one_rank)):
        np.testing.assert_allclose(added, vector(rank, 1), atol=1e-5)
        assert not differing.any()


def test_refuses_what_is_no_block():
    with pytest.raises(ValueError, match=r"RotatingBlocks\(ErrorFeedback\(Block\(...\)\)\)"):
        RotatingBlocks(ErrorFeedback(TopK(0.1)))


@pytest.mark.parametrize("blocks", [0, -1, 2.5, True, "3"])
def test_refuses_a_number_of_blocks_that_is_none(blocks):
    with pytest.raises(ValueError, match="whole number of at least 1"):
        recipes.blocks(blocks)


@pytest.mark.parametrize(
    "options", [{"bits": 3}, {"bits": 2, "wire_dtype": "float16"}, {"bits": None, "wire_dtype": "int8"}]
)
def test_refuses_bits_and_dtypes_that_it_cannot_send(options):
    with pytest.raises(ValueError, match="Expected"):
        recipes.blocks(3, **options)


def test_refuses_a_quantizer_whose_scales_depend_on_places():
    with pytest.raises(ValueError, match="do not depend on places"):
        Block(3, quantizer=OneBit("column"))


def test_a_vector_shorter_than_the_number_of_ranks_is_averaged():
    recipe = recipes.blocks(2, None)

    def one_rank(grid):
        state = recipe.init(Spec(3, grid))
        return sum(recipe.aggregate(tf.fill([3], float(grid.world.rank)), state).numpy() for _ in range(2))

    for found in threads.run(5, 1, one_rank):
        np.testing.assert_array_equal(found, [4.0, 4.0, 4.0])


def test_a_lone_rank_sends_nothing():
    recipe = recipes.blocks(2, None)
    state = recipe.init(Spec(4, Grid.lone()))
    exchange = recipe.exchange(tf.ones([4]), state)
    assert int(exchange.metrics["bytes_across"]) == int(exchange.metrics["bytes_inside"]) == 0


@pytest.mark.parametrize("wire_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("density, blocks", [(1.0, 1), (0.25, 1), (0.05, 5)])
def test_values_that_are_not_quantized_keep_their_dtype_at_any_density(wire_dtype, density, blocks):
    assert Block(3, wire_dtype).at_density(density) == Block(blocks, wire_dtype)
