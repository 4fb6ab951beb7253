"""The models of examples and benchmarks: their known sizes, and images of any size."""

import keras
import numpy as np
import pytest

from examples.models import images, lstm, transformer
from examples.models.images import Images
from examples.models.transformer import Sentences

pytestmark = pytest.mark.thorough


def parameters(model):
    return sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)


def test_resnet50_at_full_width_is_that_of_the_paper():
    model = images.resnet50(Images(width=1, image=224, batch=1))
    assert parameters(model) == 25_557_032  # 25.6M, as in torchvision
    assert model.output_shape == (None, 1000)


def test_resnet50_halves_the_image_five_times():
    model = images.resnet50(Images(width=1 / 16, image=96, batch=1))
    before_the_mean = next(layer for layer in model.layers if "global_average_pooling" in layer.name).input
    assert before_the_mean.shape == (None, 3, 3, 128)


def test_vgg19_at_full_width_is_that_of_the_paper():
    model = images.vgg19(Images(width=1, image=224, batch=1))
    assert parameters(model) == 143_667_240  # 143.7M
    assert model.output_shape == (None, 1000)


@pytest.mark.parametrize("sizes, stated", [((512, 2048, 8), 65e6), ((1024, 4096, 16), 213e6)])
def test_the_transformers_of_vaswani_have_about_what_they_state(sizes, stated):
    model = transformer.transformer(Sentences(width=1, length=8, batch=1), *sizes)
    features, hidden, _ = sizes
    attention, normalisation = 4 * (features + 1) * features, 2 * features
    dense = (features + 1) * hidden + (hidden + 1) * features
    encoder, decoder = attention + dense + 2 * normalisation, 2 * attention + dense + 3 * normalisation
    assert parameters(model) == 6 * (encoder + decoder) + 37_000 * features
    assert abs(parameters(model) - stated) < 0.03 * stated
    assert model.output_shape == (None, 8, 37_000)


def test_an_lstm_cell_has_four_gates_and_attention_joins_two_vectors():
    model = lstm.lstm(Sentences(width=1 / 8, length=6, batch=1, vocabulary=11, layers=2))
    features = 64
    cells = 4 * 4 * (2 * features + 1) * features
    begins = 2 * 2 * (features + 1) * features
    assert parameters(model) == cells + begins + 2 * features * features + 11 * features


MAKERS = pytest.mark.parametrize("maker", [transformer.transformer, lstm.lstm])


@MAKERS
def test_the_decoder_does_not_see_what_it_is_to_tell(maker):
    model = maker(Sentences(width=1 / 8, length=6, batch=1, vocabulary=11, layers=2))
    source = np.arange(6)[np.newaxis]
    target = np.array([[1, 2, 3, 4, 5, 6]])
    changed = np.array([[1, 2, 3, 4, 9, 6]])
    one, other = (np.asarray(model([source, each])) for each in (target, changed))
    np.testing.assert_allclose(one[:, :4], other[:, :4], atol=1e-5)
    assert np.max(np.abs(one[:, 4:] - other[:, 4:])) > 1e-3


@MAKERS
def test_padding_of_the_source_changes_nothing(maker):
    model = maker(Sentences(width=1 / 8, length=None, batch=1, vocabulary=11, layers=2))
    target = np.array([[1, 2, 3]])
    short, padded = (np.asarray(model([np.array([each]), target])) for each in ([4, 5, 6], [4, 5, 6, 0, 0]))
    np.testing.assert_allclose(short, padded, atol=1e-5)
    other = np.asarray(model([np.array([[4, 5, 7]]), target]))
    assert np.max(np.abs(short - other)) > 1e-3


def test_a_width_that_leaves_no_whole_channels_is_refused():
    with pytest.raises(ValueError, match="whole numbers of channels, got 0.3 of 64"):
        images.resnet50(Images(width=0.3, image=32, batch=1))


# ---- images of any size in one model ----


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 9, 10, 22])
def test_pooling_to_places_is_keras_adaptive_pooling(length):
    x = np.random.default_rng(0).standard_normal((2, length, length + 1, 3)).astype("float32")
    expected = keras.layers.AdaptiveAveragePooling2D(7)(x)
    np.testing.assert_allclose(images.PoolTo(7)(x), expected, atol=1e-6)


def test_pooling_to_as_many_places_changes_nothing():
    x = np.random.default_rng(0).standard_normal((2, 7, 7, 3)).astype("float32")
    np.testing.assert_array_equal(images.PoolTo(7)(x), x)


@pytest.mark.parametrize("maker", [images.resnet50, images.vgg19])
def test_one_model_takes_all_four_sizes(maker):
    model = maker(Images(width=1 / 16, image=None, batch=1, classes=5))
    for size in (96, 128, 224, 288):
        assert model(np.zeros((1, size, size, 3), "float32")).shape == (1, 5)
    again = keras.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    x = np.random.default_rng(0).standard_normal((1, 96, 96, 3)).astype("float32")
    np.testing.assert_allclose(again(x), model(x), rtol=1e-5, atol=1e-6)


def test_a_model_for_any_size_is_the_one_of_224_there():
    free, fixed = (images.vgg19(Images(width=1 / 16, image=size, batch=1, classes=5)) for size in (None, 224))
    free.set_weights(fixed.get_weights())
    x = np.random.default_rng(0).standard_normal((1, 224, 224, 3)).astype("float32")
    np.testing.assert_allclose(free(x), fixed(x), rtol=1e-5, atol=1e-6)
