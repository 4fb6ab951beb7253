"""SyncBatchNormalization on one rank, and its errors; tests/parallel/cases_sync_batch_norm.py tests several ranks."""

import keras
import numpy as np
import pytest

import hvd_sparse as hvd

X = np.random.default_rng(0).normal(2, 3, (16, 5, 4)).astype("f4")
Y = np.tanh(X[..., :2])


def trained(norm, **options):
    keras.utils.set_random_seed(1)
    layers = [keras.Input(X.shape[1:]), keras.layers.Masking(0.0), keras.layers.Dense(4), norm(**options)]
    model = keras.Sequential([*layers, keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(X * (X[..., :1] > 0), Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return model


@pytest.mark.parametrize(
    "options",
    [
        {"axis": 1},
        pytest.param({}, marks=pytest.mark.thorough),
        pytest.param({"center": False, "momentum": 0.5, "trainable": False}, marks=pytest.mark.thorough),
    ],
)
def test_one_rank_is_keras_layer(options):
    if "axis" in options:
        options = {**options, "epsilon": 0.1}
    own, keras_ones = (
        trained(norm, **options) for norm in (hvd.SyncBatchNormalization, keras.layers.BatchNormalization)
    )
    for value, wanted in zip(own.get_weights(), keras_ones.get_weights(), strict=True):
        np.testing.assert_array_equal(value, wanted)
    np.testing.assert_array_equal(own.predict(X, verbose=0), keras_ones.predict(X, verbose=0))


def test_a_saved_model_is_loaded_with_it(tmp_path):
    model = trained(hvd.SyncBatchNormalization, momentum=0.7, fused=False)
    model.save(tmp_path / "model.keras")
    for loaded in (hvd.load_model(tmp_path / "model.keras"), keras.models.load_model(tmp_path / "model.keras")):
        assert type(loaded.layers[-2]) is hvd.SyncBatchNormalization
        assert loaded.layers[-2].get_config() == model.layers[-2].get_config()
        np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))


def test_weights_of_keras_layer_fit():
    keras_layer, own = keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()
    for layer in (keras_layer, own):
        layer.build((None, 4))
    own.set_weights(keras_layer.get_weights())
    assert own.name.startswith("sync_batch_normalization")


@pytest.mark.parametrize(
    "options, text",
    [
        ({"fused": True}, "Expected fused=False, got fused=True"),
        ({"fused": None}, "Expected fused=False, got fused=None"),
        ({"renorm": True}, "Expected renorm=False"),
    ],
)
def test_what_cannot_be_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        hvd.SyncBatchNormalization(**options)
