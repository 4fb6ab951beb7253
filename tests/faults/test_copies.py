"""`tf.train.Checkpoint` left out, without a word, what the exchange keeps for an optimizer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd

X = np.random.RandomState(3).randn(16, 4).astype("f4")
RECIPES = {
    "recommended": lambda: hvd.recipes.recommended(density=0.5),
    "corrected": lambda: hvd.recipes.momentum_corrected(hvd.recipes.hitopk(0.5)),
}


@pytest.fixture(autouse=True, scope="module")
def started():
    hvd.init()


def made(recipe):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), aggregator=RECIPES[recipe]())
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def trained(model):
    model.fit(X, X[:, :1], batch_size=8, verbose=0, shuffle=False)
    return model


def values(model):
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


@pytest.mark.parametrize("first", ["restored", "built"])
def test_what_a_checkpoint_holds_continues(first, tmp_path):
    assert_it_continues("recommended", first, tmp_path)


@pytest.mark.parametrize("first", ["restored", "built"])
def test_control_momentum_in_the_optimizers_slots_continues(first, tmp_path):
    assert_it_continues("corrected", first, tmp_path)


def assert_it_continues(recipe, first, tmp_path):
    model = trained(made(recipe))
    hvd.consolidate(model)
    model.save(tmp_path / "model.keras")
    saved = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), tmp_path / "checkpoints", 1).save()
    expected = values(trained(hvd.load_model(tmp_path / "model.keras", aggregator=RECIPES[recipe]())))
    model = made(recipe)
    if first == "built":
        model.optimizer.build(model.trainable_variables)
    status = tf.train.Checkpoint(model=model).restore(saved)
    np.testing.assert_array_equal(values(trained(model)), expected)
    status.assert_consumed()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_checkpoint_without_the_last_moments_is_refused(recipe, tmp_path):
    model = trained(made(recipe))
    with pytest.raises(RuntimeError, match=r"hvd\.consolidate"):
        tf.train.Checkpoint(optimizer=model.optimizer).save(tmp_path / "saved")


@pytest.mark.parametrize("recipe", RECIPES)
def test_restoring_into_an_exchange_that_has_begun_is_refused(recipe, tmp_path):
    model = trained(made(recipe))
    hvd.consolidate(model)
    checkpoint = tf.train.Checkpoint(model=model)
    saved = checkpoint.save(tmp_path / "saved")
    with pytest.raises(RuntimeError, match="before the first step"):
        checkpoint.restore(saved)


@pytest.mark.parametrize("recipe", RECIPES)
def test_control_a_saved_model_is_written_at_any_time(recipe, tmp_path):
    model = trained(made(recipe))
    tf.saved_model.save(model, tmp_path / "saved")
    infer = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"]
    np.testing.assert_allclose(infer(tf.constant(X))["output_0"], model.predict(X, verbose=0), rtol=1e-5)
    checkpoint = tf.train.Checkpoint(weights=model.trainable_weights)
    checkpoint.restore(checkpoint.save(tmp_path / "weights")).assert_consumed()
    hvd.consolidate(model)
