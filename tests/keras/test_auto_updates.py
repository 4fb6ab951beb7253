"""`auto` with candidates that exchange updates: dense ones are exchanged as a whole."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import hvd_sparse as hvd
from hvd_sparse.costs import CANDIDATES
from hvd_sparse.spec import describe
from tests import figures, threads
from tests.keras.test_ahead import stepped
from tests.keras.test_local_updates import distributed

STEPS = 5


def of_candidates(*names):
    return hvd.recipes.updates(hvd.recipes.auto(0.1, names, budget=0.0), ahead=True)


def trained(make, recipe):
    """Each rank's final weights, and the decision, on two nodes of two ranks."""

    def one_rank(grid):
        optimizer = distributed(make(), recipe(), grid, name="auto")
        last = stepped(optimizer, grid, STEPS)[-1]
        exchange = optimizer.exchange
        return last, [exchange.aggregator.decided(state) for state in exchange.states]

    return threads.run(4, 2, one_rank)


@pytest.mark.parametrize("dense", ["torus2d", pytest.param("dense", marks=pytest.mark.thorough)])
def test_whole_updates_of_an_optimizer_that_is_linear_in_the_gradient_are_dense_training(dense):
    def make():
        return keras.optimizers.SGD(0.05, momentum=0.9)

    whole, plain = trained(make, lambda: of_candidates(dense)), trained(make, hvd.recipes.torus2d)
    for (ours, _), (theirs, _) in zip(whole, plain, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * np.abs(other).max())


def test_a_single_candidate_is_the_recipe_itself():
    def make():
        return keras.optimizers.Adam(0.05)

    plain = trained(make, lambda: hvd.recipes.updates(hvd.recipes.hitopk(0.1), ahead=True))
    for (ours, decided), (theirs, _) in zip(trained(make, lambda: of_candidates("hitopk")), plain, strict=True):
        assert decided == ["hitopk"]
        assert [each.tobytes() for each in ours] == [each.tobytes() for each in theirs]


def test_all_ranks_choose_alike_and_hold_the_same_weights(tmp_path):
    with figures.kept_in(tmp_path):
        ran = trained(lambda: keras.optimizers.Adam(0.05), lambda: of_candidates(*CANDIDATES))
    (first, decided), *others = ran
    assert decided[0] in CANDIDATES
    for held, also in others:
        assert also == decided
        assert [each.tobytes() for each in held] == [each.tobytes() for each in first]


def test_what_is_tried_is_kept_apart_from_what_exchanges_gradients():
    assert describe(of_candidates("hitopk", "dense")) != describe(
        hvd.recipes.auto(0.1, ("hitopk", "dense"), budget=0.0)
    )
    with pytest.raises(TypeError, match="Auto exchanges in every step"):
        hvd.recipes.updates(hvd.recipes.auto(0.1), ahead=True, every=2)
