"""Translating with a trained model, by greedy or beam search, and the BLEU score of the translations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples import extras
from examples.text.vocabulary import BEGIN, END, PAD

sacrebleu = extras.need("sacrebleu")

_NEVER = -1e9  # log-probability of excluded pieces, instead of -inf, whose differences would be NaN


class Decoder:
    """Beam search; greedy search with one beam.

    Beams are ranked by the sum of log-probabilities while they grow; a finished beam keeps its sum and competes with
    the others. The result is the finished beam with the largest sum / ((5 + length) / 6) ** alpha (Wu et al. 2016, Eq.
    14; Vaswani et al. 2017, 6.1: four beams, alpha 0.6, at most 50 pieces more than the source), or the best of all if
    none has finished in time. Each step computes the whole prefix again: sentences are short here, and so the Keras
    models are used unchanged.

    Args:
        model: model from `examples.models.transformer`.
        beams: number of hypotheses that are kept, at least 1.
        alpha: exponent of the length penalty; 0 for none.
        further: number of pieces by which a translation may be longer than its source.
    """

    def __init__(self, model: keras.Model, beams: int = 1, alpha: float = 0.6, further: int = 50):
        if beams < 1 or further < 0:
            raise ValueError(f"Expected at least 1 beam and no fewer pieces than 0, got {beams} and {further}.")
        self._encoder, self._decoder, self._embedding = map(model.get_layer, ("encoder", "decoder", "embedding"))
        self._beams, self._alpha, self._further = beams, alpha, further
        self._search = tf.function(
            self._searched, input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False
        )

    def __call__(self, source: np.ndarray) -> np.ndarray:
        """Translates padded sources int32 [rows, length] into pieces [rows, any length], ending with END and PAD."""
        return self._search(tf.constant(source)).numpy()

    def _searched(self, source: tf.Tensor) -> tf.Tensor:
        beams, rows = self._beams, tf.shape(source)[0]
        memory = tf.repeat(self._encoder(source, training=False), beams, axis=0)
        source = tf.repeat(source, beams, axis=0)
        longest = tf.shape(source)[1] + self._further

        def unfinished(prefix: tf.Tensor, sums: tf.Tensor, ended: tf.Tensor) -> tf.Tensor:
            return tf.logical_and(tf.shape(prefix)[1] <= longest, tf.logical_not(tf.reduce_all(ended)))

        def longer(prefix: tf.Tensor, sums: tf.Tensor, ended: tf.Tensor) -> tuple[tf.Tensor, ...]:
            sums, parents, pieces = _best(sums, self._next(prefix, memory, source), ended)
            places = tf.reshape(tf.range(rows)[:, None] * beams + parents, [-1])
            prefix = tf.concat([tf.gather(prefix, places), tf.reshape(pieces, [-1, 1])], axis=1)
            had = tf.gather(tf.reshape(ended, [-1]), places)
            return prefix, sums, tf.reshape(had, [-1, beams]) | (pieces == END)

        prefix = tf.fill([rows * beams, 1], BEGIN)
        first = tf.one_hot(tf.zeros(rows, tf.int32), beams, on_value=0.0, off_value=_NEVER)  # the others are copies
        state = (prefix, first, tf.zeros([rows, beams], tf.bool))
        shapes = (tf.TensorShape([None, None]), tf.TensorShape([None, beams]), tf.TensorShape([None, beams]))
        prefix, sums, ended = tf.while_loop(unfinished, longer, state, shape_invariants=shapes)
        told = tf.reshape(prefix[:, 1:], [rows, beams, -1])
        lengths = tf.reduce_sum(tf.cast(told != PAD, tf.float32), -1)
        scores = sums / ((5.0 + lengths) / 6.0) ** self._alpha + tf.where(ended, 0.0, _NEVER)
        return tf.gather(told, tf.argmax(scores, -1), batch_dims=1)

    def _next(self, prefix: tf.Tensor, memory: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
        """Log-probabilities of the next piece, float32 [rows, beams, vocabulary]; PAD and BEGIN are excluded."""
        features = self._decoder([prefix, memory, source], training=False)[:, -1]
        logits = tf.cast(self._embedding(features, reverse=True), tf.float32)
        barred = tf.reduce_sum(tf.one_hot([PAD, BEGIN], logits.shape[-1], _NEVER, 0.0), 0)
        log_probabilities = tf.nn.log_softmax(logits + barred)
        return tf.reshape(log_probabilities, [-1, self._beams, logits.shape[-1]])


def _best(sums: tf.Tensor, following: tf.Tensor, ended: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The best continuations of all beams of a row: their sums, the beams that they continue, and their pieces.

    A finished beam continues only with PAD, at log-probability 0.
    """
    beams, vocabulary = following.shape[1:]
    resting = tf.one_hot(PAD, vocabulary, 0.0, _NEVER)
    following = tf.where(ended[..., None], resting, following)
    candidates = tf.reshape(sums[..., None] + following, [-1, beams * vocabulary])
    sums, places = tf.math.top_k(candidates, beams)
    return sums, places // vocabulary, places % vocabulary


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """BLEU of a corpus, 0 to 100, by sacrebleu with its defaults (Post 2018): case-sensitive, 13a tokens.

    Raises:
        ValueError: if the numbers of hypotheses and references differ, or are 0.
    """
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"Expected a hypothesis for each reference, got {len(hypotheses)} and {len(references)}.")
    return float(sacrebleu.corpus_bleu(list(hypotheses), [list(references)]).score)


def signature() -> str:
    """The signature with which sacrebleu's scores should be quoted."""
    metric: Any = sacrebleu.BLEU()
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())
