"""A file of weights whose optimizer had no slots yet: Keras warns, and ours is left alone as any other is."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import hvd_sparse as hvd

RECIPES = {
    "updates": lambda: hvd.recipes.updates(hvd.recipes.hitopk(1.0)),
    "blocks": lambda: hvd.recipes.updates(hvd.recipes.blocks(1, None)),
    "gradients": lambda: hvd.recipes.hitopk(1.0),
}
DATA = np.random.default_rng(0).standard_normal((8, 3)).astype("f4"), np.ones((8, 2), "f4")


@pytest.fixture(autouse=True)
def a_rank_is_a_node():
    hvd.init(local_size=1)


def made(seed, recipe=None):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])
    optimizer = keras.optimizers.Adam(0.1)
    model.compile(optimizer if recipe is None else hvd.DistributedOptimizer(optimizer, aggregator=recipe()), "mse")
    return model


def trained(file, recipe=None, before=0):
    """The weights, learning rate and steps of a model that loads a file after some steps, and takes two more."""
    model = made(2, recipe)
    model.optimizer.build(model.trainable_variables)
    for _ in range(before):
        model.train_on_batch(*DATA)
    with pytest.warns(UserWarning, match="Skipping variable loading"):
        model.load_weights(file)
    for _ in range(2):
        model.train_on_batch(*DATA)
    return model.get_weights(), float(model.optimizer.learning_rate), int(model.optimizer.iterations)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("before", [0, 3])
def test_training_goes_on_as_with_plain_keras(recipe, before, tmp_path):
    made(1, recipe).save_weights(tmp_path / "ours.weights.h5")
    made(1).save_weights(tmp_path / "plain.weights.h5")
    ours, rate, steps = trained(tmp_path / "ours.weights.h5", recipe, before)
    plain, *same = trained(tmp_path / "plain.weights.h5", before=before)
    assert [rate, steps] == same == [pytest.approx(0.1), before + 2]
    for one, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
