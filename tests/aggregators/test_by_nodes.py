"""The choice by the number of nodes: properties not covered by the table of recipes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse import recipes
from hvd_sparse.aggregators import ByNodes, by_nodes
from hvd_sparse.compression.block import Block
from hvd_sparse.exchange import wire
from hvd_sparse.spec import Spec, parts
from tests import threads
from tests.aggregators.test_rotating_blocks import came_out, went_in
from tests.aggregators.test_warmup import SIZE, trained, vector
from tests.keras.test_local_updates import distributed


@pytest.fixture(autouse=True, scope="module")
def started():
    hvd.init(local_size=1)  # given, so that recipes select


CHOICE = ByNodes(((1, recipes.hitopk(0.1)), (3, recipes.blocks(3, None))))


@pytest.mark.parametrize("ranks, local_size", [(1, 1), (2, 2), (2, 1), (4, 2), (3, 1), (6, 2), (4, 1)])
def test_each_number_of_nodes_has_its_own(ranks, local_size):
    chosen = recipes.hitopk(0.1) if ranks // local_size < 3 else recipes.blocks(3, None)
    for mine, other in zip(trained(CHOICE, ranks, local_size, 4), trained(chosen, ranks, local_size, 4), strict=True):
        for step, expected in zip(mine, other, strict=True):
            assert all(np.array_equal(*pair) for pair in zip(step, expected, strict=True))


@pytest.mark.parametrize("ranks, others", [(2, 4), (4, 2)])
def test_what_waits_goes_to_a_number_of_nodes_with_another_choice(ranks, others):
    """And nothing of it is lost there."""
    owed = np.sum([rank[-1][3] for rank in trained(CHOICE, ranks, 1, 4)], axis=0)

    def one_rank(grid):
        state = CHOICE.init(Spec(SIZE, grid))
        CHOICE.restore(state, tf.constant(owed))
        means = [CHOICE.aggregate(tf.zeros([SIZE]), state).numpy() for _ in range(3)]
        return np.sum(means, axis=0), CHOICE.residual(state).numpy()

    found = threads.run(others, 1, one_rank)
    total = others * found[0][0] + np.sum([left for _, left in found], axis=0)
    np.testing.assert_allclose(total, owed, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_warm_up_sends_more_at_first_on_any_number_of_nodes(ranks):
    """Densities are budgets: of pairs of 64 bits between two nodes, of blocks and bits on more."""
    recipe = ByNodes(((1, recipes.hitopk(0.01)), (3, recipes.blocks(3, 2))))
    found = trained(recipes.warmup(recipe, 1, [0.25, 0.0625], dense_steps=1), ranks, 1, 5)
    np.testing.assert_array_equal(found[0][0][0], (went_in(ranks, 1) / ranks).astype(np.float32))
    sent = [across for _, _, across, _ in found[0]]
    assert sent[0] > sent[1] > sent[2] and sent[3] == sent[4]  # at so few elements the scales outweigh the last values
    np.testing.assert_allclose(came_out(found), went_in(ranks, 5), atol=1e-3)


def test_the_first_rank_says_once_what_is_sent(capsys):
    by_nodes._tell.cache_clear()
    for ranks in (2, 4, 4):
        threads.run(ranks, 1, _begun)
    assert capsys.readouterr().out.splitlines() == [
        "hvd_sparse: 2 nodes: the largest 1% of each node's updates",
        "hvd_sparse: 4 nodes: one of 3 blocks of the updates in each step, the same on all nodes, 2 bits a value",
    ]


def _begun(grid):
    run = distributed(keras.optimizers.Adam(0.01), recipes.recommended(0.01), grid, name="told")
    run.apply([tf.constant(vector(grid.world.rank, 0))], [keras.Variable(np.ones(SIZE, "f4"), name="v")])


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_recommended_trains_like_what_it_chooses(nodes):
    few = recipes.updates(recipes.hitopk(0.1), ahead=True, gain_ratio=True)
    many = recipes.updates(recipes.blocks().at_density(0.1), ahead=True, gain_ratio=True)

    def weights(recipe):
        def one_rank(grid):
            run = distributed(keras.optimizers.Adam(0.01), recipe, grid, name="same")
            variable = keras.Variable(np.ones(SIZE, "f4"), name="v")
            for step in range(4):
                run.apply([tf.constant(vector(grid.world.rank, step))], [variable])
            return variable.numpy()

        return threads.run(nodes, 1, one_rank)

    expected = weights(few if nodes < 3 else many)
    for mine, other in zip(weights(recipes.recommended(0.1)), expected, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(
    "density, count, bits",
    [(1.0, 1, 32), (0.25, 1, 16), (0.1, 1, 8), (0.0625, 1, 4), (0.02, 2, 2), (0.01, 3, 2), (0.001, 31, 2)],
)
def test_the_density_of_recommended_is_a_budget_of_bytes_on_many_nodes(density, count, bits):
    """That of pairs of 64 bits, met within a half where blocks and bits are whole numbers."""
    (block,) = (part for part in parts(recipes.recommended(density)) if isinstance(part, Block))
    assert (block.blocks, block.coder.code_bytes(8)) == (count, bits)
    assert density == 1.0 or 1 / 1.5 <= bits / count / (64 * density) <= 1.5


def test_half_precision_is_for_the_choice_whose_values_are_not_encoded():
    changed = wire.with_wire_dtype(recipes.recommended(0.01), "float16")
    (_, few), (_, many) = changed.choices
    plain = recipes.recommended(0.01).choices
    assert few.inner.compressor.wire_dtype == "float16" and many == plain[1][1] and few != plain[0][1]


@pytest.mark.parametrize("fewest", [(), (2,), (1, 1), (3, 1), (0, 1)])
def test_refuses_choices_that_leave_out_a_number_of_nodes(fewest):
    with pytest.raises(ValueError, match="Expected choices from one node on"):
        ByNodes(tuple((nodes, recipes.hitopk(0.1)) for nodes in fewest))


def test_recommended_refuses_a_density_that_changes():
    with pytest.raises(ValueError, match="Expected a number as the density"):
        recipes.recommended(lambda step: 0.1)
