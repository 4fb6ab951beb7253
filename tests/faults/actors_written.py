"""Weights and moments that are written between two steps by Keras's public ways; on two nodes of one rank."""

from __future__ import annotations

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd

RECIPES = {
    "hitopk": lambda density: hvd.recipes.hitopk(density),
    "updates": lambda density: hvd.recipes.updates(hvd.recipes.hitopk(density)),
    "recommended": lambda density: hvd.recipes.recommended(density=density),
    "corrected": lambda density: hvd.recipes.momentum_corrected(hvd.recipes.hitopk(density)),
    "diloco": lambda density: hvd.recipes.diloco(every=6),  # a fit has four steps
}
KINDS = {
    "sgd": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
}


def _everywhere(value):
    return hvd.allgather_object(value)


def _model(recipe, kind="sgd", density=1.0):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(KINDS[kind](), aggregator=RECIPES[recipe](density)), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def _fit(model, epochs=1):
    x = np.random.default_rng(hvd.rank()).normal(size=(128, 16)).astype("f4")
    model.fit(x, 2 * x[:, :1], batch_size=32, epochs=epochs, shuffle=False, verbose=0)
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def _saved(model):
    """A file of the weights and the moments, the same on every rank."""
    hvd.consolidate(model)
    folder = pathlib.Path(_everywhere(tempfile.mkdtemp())[0])
    if hvd.rank() == 0:
        model.save_weights(folder / "model.weights.h5")
    _everywhere(None)
    return folder / "model.weights.h5"


def _assert_replicas(weights):
    first, second = _everywhere(weights)
    np.testing.assert_array_equal(first, second)


def _error_of(call):
    try:
        call()
    except Exception as error:
        return str(error)
    return ""


def _rolled_back(recipe, kind):
    model = _model(recipe, kind)
    _fit(model)
    path = _saved(model)
    _fit(model)
    model.load_weights(path)
    again = _fit(model)
    _assert_replicas(again)
    fresh = _model(recipe, kind)
    fresh.load_weights(path)
    np.testing.assert_allclose(again, _fit(fresh), rtol=0, atol=1e-6)


def control_a_file_goes_on_in_a_new_model_as_the_training_that_was_not_stopped():
    for recipe in sorted(RECIPES.keys() - {"diloco"}):  # no file of Keras counts the steps since the last exchange
        model = _model(recipe)
        _fit(model)
        path = _saved(model)
        fresh = _model(recipe)
        fresh.load_weights(path)
        np.testing.assert_allclose(_fit(fresh), _fit(model), rtol=0, atol=1e-6)


def updates_that_are_rolled_back_go_on_with_the_moments_of_the_file():
    _rolled_back("updates", "sgd")
    _rolled_back("updates", "adam")


def recommended_that_is_rolled_back_goes_on_with_the_moments_of_the_file():
    _rolled_back("recommended", "sgd")
    _rolled_back("recommended", "adam")


def corrected_momentum_that_is_rolled_back_goes_on_from_the_file():
    _rolled_back("corrected", "sgd")
    _rolled_back("corrected", "adam")


def weights_that_were_set_back_do_not_move_without_a_learning_rate():
    for recipe in ("recommended", "updates"):
        model = _model(recipe, "adam", density=0.1)
        before = model.get_weights()
        _fit(model)
        model.set_weights(before)
        model.optimizer.learning_rate = 0.0
        np.testing.assert_array_equal(_fit(model), np.concatenate([np.ravel(weight) for weight in before]))


def the_best_weights_are_restored_without_what_waited():
    model = _model("recommended", "adam", density=0.1)
    x = np.random.default_rng(hvd.rank()).normal(size=(64, 16)).astype("f4")
    stop = keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=2, restore_best_weights=True)
    model.fit(x, 2 * x[:, :1], batch_size=32, epochs=5, shuffle=False, verbose=0, callbacks=[stop])
    best = model.get_weights()
    model.optimizer.learning_rate = 0.0
    np.testing.assert_array_equal(_fit(model), np.concatenate([np.ravel(weight) for weight in best]))


def a_write_on_one_rank_alone_is_an_error_on_all():
    for recipe in ("hitopk", "recommended", "corrected", "diloco"):
        model = _model(recipe, density=0.1)
        _fit(model)
        if hvd.rank() == 0:
            model.set_weights([weight * 0.5 for weight in model.get_weights()])
        for told in _everywhere(_error_of(lambda model=model: _fit(model))):
            assert "written since the last step" in told and "hvd.broadcast_variables" in told, told


def rank_0_loads_and_broadcasts_in_mid_training():
    model = _model("recommended", density=0.1)
    _fit(model)
    path = _saved(model)
    _fit(model)
    if hvd.rank() == 0:
        model.load_weights(path)
    hvd.broadcast_variables([*model.variables, *model.optimizer.variables], 0)
    again = _fit(model)
    _assert_replicas(again)
    fresh = _model("recommended", density=0.1)
    fresh.load_weights(path)
    np.testing.assert_allclose(again, _fit(fresh), rtol=0, atol=1e-6)


def momentum_that_is_assigned_is_obeyed():
    model = _model("corrected")
    _fit(model)
    hvd.consolidate(model)
    expected = _model("corrected")
    expected.set_weights(model.get_weights())
    for velocity in [*model.optimizer.momentums, *expected.optimizer.momentums]:
        velocity.assign(tf.ones(velocity.shape) * 0.01)
    np.testing.assert_allclose(_fit(model), _fit(expected), rtol=0, atol=1e-6)


def nothing_that_belongs_to_other_weights_is_saved():
    model = _model("recommended", density=0.1)
    _fit(model)
    model.set_weights([weight * 0.5 for weight in model.get_weights()])
    kept = model.optimizer.exchange.residual_sum().residuals
    assert kept and not any(np.any(residual) for residual in kept.values())


def momentum_of_rows_follows_a_change_of_the_learning_rate():
    def trained(aggregator):
        keras.utils.set_random_seed(1)
        layers = [keras.Input((3,), dtype="int32"), keras.layers.Embedding(6, 4), keras.layers.Flatten()]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        model.compile(hvd.DistributedOptimizer(optimizer, aggregator=aggregator), "mse")
        generator = np.random.default_rng(0)  # the same on both ranks, so that updates are those of the mean gradient
        ids, y = generator.integers(0, 6, size=(32, 3)), generator.normal(size=(32, 1))
        falling = hvd.callbacks.LearningRateScheduleCallback(0.05, lambda epoch: 0.1**epoch)
        model.fit(ids, y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=[falling])
        return model.get_weights()

    expected = trained(None)
    for found, weight in zip(trained(hvd.recipes.updates(hvd.recipes.hitopk(1.0))), expected, strict=True):
        np.testing.assert_allclose(found, weight, rtol=0, atol=1e-5)
