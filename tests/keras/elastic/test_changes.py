"""Ranks that come and go, as threads: nothing is lost at a planned change, and only the dead ranks' part at a death."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.exchange import remains, sender_side
from hvd_sparse.keras.exchanging import exchange_of
from hvd_sparse.optimizers import slots, without_slots
from tests.grid import world
from tests.keras.elastic.ranks import AFTER, BEFORE, RECIPES, SIZE, Rank, means

# Ranks and ranks of each node before; the ranks that stay, the number that joins, and the ranks of each node after.
CHANGES = {
    "one of four leaves a node": ((4, 2), [0, 1, 2], 1, 2),
    "a node leaves": ((4, 2), [0, 1], 0, 2),
    "rank 0 leaves": ((4, 1), [1, 3], 0, 1),
    "all but one leave": ((4, 2), [2], 0, 1),
    "a node joins": ((2, 2), [0, 1], 2, 2),
    "ranks join": ((1, 1), [0], 3, 2),
    "nothing": ((4, 2), [0, 1, 2, 3], 0, 2),
}


def before(recipe, grid, planned, **options):
    """The ranks after some steps, and, if the change is planned, after they have handed over."""

    def one_rank(_):
        with tf.init_scope():
            keras.utils.set_random_seed(3)
            rank = Rank(recipe, **options)
        rank.state.sync()
        rank.train(BEFORE)
        rank.lost = rank.own_waiting()
        rank.commits = rank.state._commits
        if planned:
            rank.state.hand_over()
        else:
            rank.model.trainable_variables[0].assign_add(tf.ones([SIZE, 1]))  # a step that is not committed
            rank.state.step += 1
            rank.state.restore()
        return rank

    return world.run(*grid, one_rank)


def after(ranks, stay, joining, local_size, recipe, then, **options):
    """What a function returns on each rank after the change."""

    def one_rank(number):
        rank = ranks[stay[number]] if number < len(stay) else Rank(recipe, **options)
        if number < len(stay):
            rank.state.meet()
            rank.state.on_reset()
        rank.state.sync()
        return then(rank)

    return world.run(len(stay) + joining, local_size, one_rank)


QUICK = ("dense", "hitopk", "recommended", "blocks")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("planned", [True, False], ids=["planned", "death"])
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in QUICK else pytest.mark.thorough) for each in RECIPES]
)
def test_what_was_applied_and_what_waits_add_up(name, planned, change):
    recipe, (grid, stay, joining, local_size) = RECIPES[name], CHANGES[change]
    ranks = before(recipe, grid, planned)
    beginning = ranks[0].beginning

    def then(rank):
        assert rank.state.step == BEFORE and rank.state.sizes == [grid[0]] * BEFORE
        rank.train(AFTER)
        return rank.weights, rank.waiting(), rank.state.sizes, rank.state.step

    found = after(ranks, stay, joining, local_size, recipe, then)
    weights, waiting, sizes, steps = found[0]
    assert steps == BEFORE + AFTER and sizes == [grid[0]] * BEFORE + [len(found)] * AFTER
    assert all((each[0] == weights).all() for each in found)
    lost = [] if planned else [each.lost for rank, each in enumerate(ranks) if rank not in stay]
    missing = np.sum(lost, axis=0) / grid[0] if lost else 0
    np.testing.assert_allclose(
        weights.astype("f8") - waiting / len(found), beginning.astype("f8") - means(sizes) + missing, atol=2e-4
    )
    assert name == "dense" or planned or len(stay) == grid[0] or np.abs(missing).max() > 1


def gathered(rank):
    """The slots, as the next checkpoint would have them on rank 0."""
    stand_in = without_slots.of(slots.without_loss_scaling(rank.model.optimizer))
    return {name: np.ravel(*held.values()) for name, held in slots.by_name(stand_in.gathered).items()}


@pytest.mark.parametrize("unfinished", [[0], [1], [0, 2], [0, 1, 2]])
def test_a_death_while_ranks_hand_over_counts_nothing_twice(unfinished):
    recipe = RECIPES["hitopk"]
    ranks = before(recipe, (4, 2), planned=True)
    for number in unfinished:  # they had not noticed that all are done when rank 3 died
        ranks[number].state._commits = ranks[number].commits

    def then(rank):
        rank.train(AFTER)
        return rank.weights, rank.waiting(), rank.state.sizes

    weights, waiting, sizes = after(ranks, [0, 1, 2], 0, 1, recipe, then)[0]
    expected = ranks[0].beginning - means(sizes) + ranks[3].lost / 4
    np.testing.assert_allclose(weights.astype("f8") - waiting / 3, expected, atol=2e-4)


@pytest.mark.parametrize("change", ["one of four leaves a node", "a node leaves", "a node joins"])
def test_slots_on_shards_are_handed_over(change):
    (grid, stay, joining, local_size), recipe = CHANGES[change], lambda: hvd.recipes.updates(RECIPES["hitopk"]())
    options = {"optimizer": lambda: keras.optimizers.Adam(0.01)}
    ranks = before(recipe, grid, True, **options)
    expected = ranks[0].state._commits[ranks[0].state._number]["exchanges"]["optimizer"].handed.slots()
    for each in after(ranks, stay, joining, local_size, recipe, gathered, **options):
        for slot, (value,) in ((slot, expected[slot].values()) for slot in expected):
            np.testing.assert_array_equal(each[slot], np.ravel(value))
            assert value.any()


def test_of_a_dead_rank_the_slots_are_those_of_the_same_place_on_other_nodes():
    recipe, options = (
        lambda: hvd.recipes.updates(RECIPES["hitopk"]()),
        {"optimizer": lambda: keras.optimizers.Adam(0.01)},
    )
    ranks = before(recipe, (4, 2), False, **options)
    own = [remains.of(exchange_of(each.model.optimizer).planned, False).pieces for each in ranks]
    half = SIZE // 2
    for each in after(ranks, [0, 1, 2], 0, 1, recipe, gathered, **options):
        for slot, value in each.items():
            first = [np.ravel(pieces[f"slot {slot} 0"])[:half] for pieces in (own[0], own[2])]
            np.testing.assert_allclose(value[:half], np.mean(first, axis=0), rtol=1e-6)
            np.testing.assert_array_equal(value[half:], np.ravel(own[1][f"slot {slot} 0"])[half:])


def test_slots_that_no_rank_has_begin_as_the_optimizers_do():
    recipe, options = (
        lambda: hvd.recipes.updates(RECIPES["hitopk"]()),
        {"optimizer": lambda: keras.optimizers.Adagrad(0.01, initial_accumulator_value=0.3)},
    )
    ranks = before(recipe, (4, 2), False, **options)
    half = SIZE // 2
    for each in after(ranks, [0, 2], 0, 1, recipe, gathered, **options):  # each node's second half is lost
        (accumulated,) = each.values()
        assert (accumulated[:half] > 0.3).any()
        np.testing.assert_array_equal(accumulated[half:], np.float32(0.3))


def test_pieces_add_up_to_what_collectives_gather():
    def then(rank):
        exchange = exchange_of(rank.model.optimizer)
        own = remains.of(exchange.planned, hvd.rank() == 0)
        total = remains.added_up(own, remains.described(own), exchange.grid().world, "test")
        return total, exchange.residual_sum(), sender_side.gather_slots(exchange)

    recipe = lambda: hvd.recipes.updates(RECIPES["hitopk"]())  # noqa: E731
    ranks = before(recipe, (4, 2), True, optimizer=lambda: keras.optimizers.Adam(0.01))
    for total, residuals, held in world.run(4, 2, lambda number: then(ranks[number])):
        scaled = total.scaled(4)
        assert scaled.step == residuals.step == BEFORE and scaled.counters == residuals.counters
        assert scaled.unit == residuals.unit and total.unknown() == 0
        for name, value in residuals.residuals.items():
            np.testing.assert_allclose(scaled.residuals[name], value, rtol=1e-6)
        for slot, values in held.items():
            for name, value in values.items():
                np.testing.assert_allclose(total.slots()[slot][name], value, rtol=1e-6)
