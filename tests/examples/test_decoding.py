"""The Transformer with padding, decoding compared with a slow and simple search, and BLEU."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples.models.transformer import Sentences, transformer
from examples.text import decoding
from examples.text.decoding import Decoder
from examples.text.vocabulary import BEGIN, END, PAD
from examples.training import losses

pytestmark = pytest.mark.thorough

VOCABULARY = 9


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(7)
    made = transformer(Sentences(1 / 16, None, 1, VOCABULARY, layers=2), heads=16)
    for weight in made.trainable_weights:  # with initial weights, all translations end at once or never
        weight.assign(weight + 0.3 * np.random.default_rng(1).standard_normal(weight.shape))
    return made


def pieces(rows, length, seed=0):
    return np.random.default_rng(seed).integers(3, VOCABULARY, (rows, length)).astype(np.int32)


def padded(tokens, more):
    return np.pad(tokens, ((0, 0), (0, more)))


# ---- padding ----


def test_padding_changes_no_logits(model):
    source, target = pieces(4, 5), pieces(4, 6, seed=1)
    plain = model([source, target])
    more = model([padded(source, 3), padded(target, 2)])
    np.testing.assert_allclose(more[:, :6], plain, rtol=1e-4, atol=1e-5)
    other = model([np.pad(source, ((0, 0), (0, 3)), constant_values=4), target])
    assert np.max(np.abs(other - plain)) > 1e-2  # pieces that are not padding do


def test_padding_changes_neither_loss_nor_gradients(model):
    loss_of = losses.SmoothedCrossentropy(0.1, reduction="mean_with_sample_weight")

    def loss_and_gradients(source, target, labels):
        weights = (labels != PAD).astype("float32")
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model([source, target], training=False), sample_weight=weights)
        return loss, tape.gradient(loss, [weight.value for weight in model.trainable_weights])

    source, target, labels = (pieces(3, 5, seed) for seed in (0, 1, 2))
    loss, gradients = loss_and_gradients(source, target, labels)
    same, others = loss_and_gradients(*(padded(each, 4) for each in (source, target, labels)))
    np.testing.assert_allclose(same, loss, rtol=1e-5)
    scale = max(float(tf.reduce_max(tf.abs(gradient))) for gradient in gradients)
    for gradient, other in zip(gradients, others, strict=True):
        assert not isinstance(gradient, tf.IndexedSlices)  # the embedding is also the output layer
        np.testing.assert_allclose(other, gradient, atol=1e-5 * scale)


def test_positions_are_those_of_the_paper():
    from examples.models.transformer import Positions

    told = np.asarray(Positions()(np.zeros((1, 7, 6), "float32")))[0]
    for place, number in itertools.product(range(7), range(3)):
        angle = place / 10_000 ** (2 * number / 6)
        np.testing.assert_allclose(told[place, 2 * number : 2 * number + 2], [np.sin(angle), np.cos(angle)], atol=1e-6)


def test_ranks_with_other_seeds_drop_other_features():
    size = Sentences(1 / 16, None, 1, VOCABULARY, layers=1)
    outputs = []
    for seed in (0, 0, 1):
        keras.utils.set_random_seed(3)
        made = transformer(size, heads=16, seed=seed)
        outputs.append(np.asarray(made([pieces(2, 4), pieces(2, 4)], training=True)))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert np.max(np.abs(outputs[0] - outputs[2])) > 1e-3


# ---- decoding ----


@pytest.fixture(scope="module")
def following(model):
    """A function from a source and a prefix to the log-probabilities of the next piece, by the whole model."""
    signature = [tf.TensorSpec([1, None], tf.int32)] * 2
    logits_of = tf.function(lambda source, target: model([source, target])[0, -1], input_signature=signature)

    def told(source, prefix):
        logits = logits_of(source[None], np.array([prefix], np.int32)).numpy().astype(float)
        logits[[PAD, BEGIN]] = -np.inf
        return logits - np.logaddexp.reduce(logits)

    return told


def plain_search(following, source, beams, alpha, further):
    """Beam search with lists."""
    kept = [(0.0, [BEGIN])]
    for _ in range(len(source) + further):
        candidates = []
        for score, prefix in kept:
            if prefix[-1] == END:
                candidates.append((score, prefix))
                continue
            told = following(source, prefix)
            candidates += [(score + told[piece], [*prefix, piece]) for piece in range(VOCABULARY)]
        kept = sorted(candidates, key=lambda candidate: -candidate[0])[:beams]
        if all(prefix[-1] == END for _, prefix in kept):
            break
    ended = [candidate for candidate in kept if candidate[1][-1] == END] or kept
    return max(ended, key=lambda candidate: candidate[0] / ((5 + len(candidate[1]) - 1) / 6) ** alpha)[1][1:]


@pytest.mark.parametrize("beams, alpha", [(1, 0.6), (2, 0.0), (4, 2.0)])
def test_decoding_finds_what_a_plain_search_finds(model, following, beams, alpha):
    source = pieces(5, 4, seed=3)
    source[3, 2:] = PAD  # shorter sources in the batch, whose translations are not to become longer
    told = Decoder(model, beams, alpha, further=6)(source)
    ended = 0
    for own, row in zip(source, told, strict=True):
        expected = plain_search(following, own, beams, alpha, 6)
        ended += END in expected
        assert row.tolist()[: len(expected)] == expected and set(row.tolist()[len(expected) :]) <= {PAD}
    assert 0 < ended  # otherwise ends would not be tested


def test_more_beams_find_what_is_more_likely(model, following):
    source = pieces(4, 4, seed=4)

    def likelihoods(beams):
        sums = []
        for own, row in zip(source, Decoder(model, beams, 0.0, further=4)(source), strict=True):
            row = row[row != PAD].tolist()
            steps = [following(own, [BEGIN, *row[:n]])[piece] for n, piece in enumerate(row)]
            sums.append(sum(steps))
        return np.array(sums)

    assert np.mean(likelihoods(8)) > np.mean(likelihoods(1))


def test_a_translation_that_does_not_end_is_cut():
    made = transformer(Sentences(1 / 16, None, 1, VOCABULARY, layers=1), heads=16)
    embeddings = np.zeros((VOCABULARY, 32), "float32")
    embeddings[5], embeddings[END] = 1, -1
    made.get_layer("embedding").embeddings.assign(embeddings)
    made.get_layer("decoder").layers[-1].beta.assign(np.full(32, 9.0))  # of the last normalisation: output is always 5
    assert Decoder(made, further=3)(np.array([[3, 4]], np.int32)).tolist() == [[5] * 5]


@pytest.mark.parametrize("wrong", [{"beams": 0}, {"further": -1}])
def test_a_search_that_cannot_be_is_refused(model, wrong):
    with pytest.raises(ValueError, match="at least 1 beam"):
        Decoder(model, **wrong)


# ---- BLEU ----


def test_a_perfect_copy_has_100():
    texts = ["die Datei konnte nicht geöffnet werden", "Aufruf: %s [OPTION] DATEI", "ein kurzer Satz mehr"]
    assert decoding.bleu(texts, texts) == pytest.approx(100)
    assert decoding.bleu(["etwas ganz anderes"] * 3, texts) < 5
    half = [texts[0], "Aufruf: %s OPTION", "kein kurzer Satz mehr"]
    assert 30 < decoding.bleu(half, texts) < 80


def test_bleu_needs_as_many_references():
    with pytest.raises(ValueError, match="a hypothesis for each reference, got 1 and 2"):
        decoding.bleu(["a"], ["a", "b"])
    assert "tok:13a" in decoding.signature() and "version:" in decoding.signature()
