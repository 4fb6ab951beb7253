"""The Transformer with layers inside its feed-forward blocks, and the script that puts thresholds there."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from examples import split_translation
from examples.models import splits, transformer
from examples.models.transformer import Sentences

SOURCE, TARGET = np.array([[4, 5, 6, 0], [7, 8, 9, 10]]), np.array([[1, 2, 3], [3, 2, 1]])


@keras.saving.register_keras_serializable(package="tests")
class Seen(keras.layers.Layer):
    """Passes its input on and records it."""

    def call(self, x):
        self.given = x
        return x


def small():
    return transformer.transformer(Sentences(1 / 8, None, 1, 11, layers=2))


def test_splits_are_where_the_paper_has_them():
    """With six layers: the fifth of the encoder, then of the decoder, then the third of both (3.2)."""
    assert splits.usual_places(6, 4) == ["encoder_5", "decoder_5", "encoder_3", "decoder_3"]
    assert [splits.usual_places(layers, 1) for layers in (1, 2)] == [["encoder_1"]] * 2
    for layers in (1, 2, 3, 4, 6):
        everywhere = splits.usual_places(layers, 2 * layers)
        assert len(set(everywhere)) == 2 * layers
        assert all(splits.usual_places(layers, few) == everywhere[:few] for few in range(1, 2 * layers))
    with pytest.raises(ValueError, match="Expected 1 to 2 splits of 1 layers .* got 3"):
        splits.usual_places(1, 3)


@pytest.mark.parametrize("before_relu", [False, True])
def test_layers_stand_where_they_are_asked_for_and_the_model_is_the_same(before_relu):
    model = small()
    expected, weights = np.asarray(model([SOURCE, TARGET])), model.get_weights()
    made = []

    def make():
        made.append(Seen())
        return made[-1]

    split = splits.thresholded(model, ["encoder_1", "decoder_2"], make, before_relu)
    np.testing.assert_array_equal(np.asarray(split([SOURCE, TARGET])), expected)
    assert all(map(np.array_equal, split.get_weights(), weights))
    encoder, decoder = (split.get_layer(side).layers for side in splits.SIDES)
    assert [made[0] in encoder, made[1] in decoder, len(made)] == [True, True, 2]
    assert all(each.given.shape[-1] == 256 for each in made)
    assert all(bool(tf.reduce_any(each.given < 0)) == before_relu for each in made)


def test_a_place_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="layers of encoder_1, encoder_2, decoder_1, decoder_2, got decoder_3"):
        splits.thresholded(small(), ["encoder_1", "decoder_3"], Seen)


def test_the_script_puts_thresholds_where_its_options_say():
    words = ["--reduced", "--layers", "2"]
    vocabulary = type("", (), {"vocabulary": type("", (), {"size": 11})})
    places = {}
    for given in (["--splits", "3"], ["--split-after", "decoder_2"], ["--sparsity", "0"]):
        options = split_translation.parse([*words, *given])
        model = split_translation.make_model(options, vocabulary)
        layers = [each for side in splits.SIDES for each in model.get_layer(side).layers]
        places[given[0]] = [each.sparsity for each in layers if isinstance(each, hvd.pipeline.Threshold)]
    assert places == {"--splits": [0.9] * 3, "--split-after": [0.9], "--sparsity": []}
    with pytest.raises(SystemExit):
        split_translation.parse(["--model", "lstm"])
