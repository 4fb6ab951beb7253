"""The layer that passes only the largest activations: in models, in training and in files."""

import decimal

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import hvd_sparse as hvd
from hvd_sparse.pipeline.threshold import kept_of
from tests.gpu import reference
from tests.simulation import same_bits

Threshold = hvd.pipeline.Threshold
SPARSITIES = st.floats(0, 1, exclude_max=True)


def mask_of(x, k):
    mask = np.zeros_like(x)
    np.put_along_axis(mask, reference.largest_of_rows(x, k), 1, -1)
    return mask


def digits():
    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), labels.astype(np.int64)


def classifier(sparsity=0.75, **options):
    """A classifier of the digits with a layer whose activations are made sparse."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input([64]), keras.layers.Dense(48, "relu"), Threshold(sparsity, **options)]
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


@given(width=st.integers(1, 200), sparsity=SPARSITIES, seed=st.integers(0, 999))
def test_exactly_the_largest_share_passes_both_ways(width, sparsity, seed):
    random = np.random.default_rng(seed)
    x, dy = (random.standard_normal((3, 2, width)).astype(np.float32) for _ in range(2))
    given_x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(given_x)
        y = Threshold(sparsity)(given_x, training=True)
    mask = mask_of(x, max(1, width - int(width * decimal.Decimal(str(sparsity)))))
    np.testing.assert_array_equal(y, x * mask)
    np.testing.assert_array_equal(tape.gradient(y, given_x, dy), dy * mask)


def test_sparsity_0_is_dense_to_the_bit():
    x = np.array([[0.0, -0.0, 1e-40, -np.inf], [1, 1, 1, 1]], np.float32)
    with tf.GradientTape() as tape:
        given_x = tf.constant(x)
        tape.watch(given_x)
        y = Threshold(0)(given_x)
    same_bits(y.numpy(), x)
    same_bits(tape.gradient(y, given_x, -x).numpy(), -x)


@pytest.mark.parametrize(
    "width, sparsity, kept", [(4096, 0.95, 205), (10, 0.9, 1), (10, 0.99, 1), (7, 0.0, 7), (1, 0.5, 1), (100, 0.29, 71)]
)
def test_how_many_pass(width, sparsity, kept):
    assert kept_of(width, sparsity) == kept


@pytest.mark.parametrize(
    "at_inference, training, masks", [(True, False, True), (False, False, False), (False, True, True)]
)
def test_inference_holds_back_or_not(at_inference, training, masks):
    x = np.arange(1, 11, dtype=np.float32)[np.newaxis]
    y = Threshold(0.8, at_inference=at_inference)(x, training=training)
    np.testing.assert_array_equal(y, x * (x > 8) if masks else x)
    compiled = tf.function(Threshold(0.8, at_inference=at_inference))
    np.testing.assert_array_equal(compiled(tf.constant(x), training=training), y)


def test_a_model_learns_with_it():
    images, labels = digits()
    model = classifier()
    model.fit(images, labels, batch_size=64, epochs=5, verbose=0)
    assert model.evaluate(images, labels, verbose=0)[1] > 0.9
    inner = keras.Model(model.inputs, model.layers[1].output)
    assert (np.count_nonzero(inner.predict(images, verbose=0), axis=1) <= 12).all()


def test_a_saved_model_is_the_same(tmp_path):
    images, labels = digits()
    model = classifier(0.5, at_inference=False, name="largest")
    model.fit(images[:64], labels[:64], verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    layer = loaded.get_layer("largest")
    assert isinstance(layer, Threshold) and (layer.sparsity, layer.at_inference) == (0.5, False)
    same_bits(loaded(images, training=True).numpy(), model(images, training=True).numpy())
    assert "largest" in model.to_json() and keras.models.model_from_json(model.to_json()).count_params()


def test_a_functional_model_of_any_rank_and_batch():
    inputs = keras.Input([None, 3, 20])
    outputs = Threshold(0.9)(inputs)
    assert outputs.shape == (None, None, 3, 20)
    model = keras.Model(inputs, outputs)
    x = np.random.default_rng(0).standard_normal((2, 5, 3, 20)).astype(np.float32)
    np.testing.assert_array_equal(model.predict(x, verbose=0), x * mask_of(x, 2))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    x = np.random.default_rng(0).standard_normal((4, 100)).astype(np.float32)
    layer = Threshold(0.9, dtype=policy)
    half = tf.cast(x, layer.compute_dtype)
    y = layer(x)
    assert y.dtype == half.dtype
    bits = half.numpy().view(np.uint16)
    np.testing.assert_array_equal(y.numpy().view(np.uint16), np.where(mask_of(bits, 10) > 0, bits, 0))


@pytest.mark.parametrize("sparsity", [-0.1, 1, 1.5, float("nan")])
def test_a_share_that_cannot_be_is_refused(sparsity):
    with pytest.raises(ValueError, match=r"sparsity in \[0, 1\)"):
        Threshold(sparsity)


@pytest.mark.parametrize("shape", [[4], [4, 0], [4, None]])
def test_inputs_without_rows_are_refused(shape):
    with pytest.raises(ValueError, match="known d of at least 1"):
        Threshold(0.5).build(shape)
