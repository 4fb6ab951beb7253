"""Translating with a trained Transformer: greedy and beam search, and the BLEU of what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import sacrebleu
import tensorflow as tf

from examples.text.vocabulary import BEGIN, END, PAD

_NEVER = -1e9  # log-probability of what must not come, in place of -inf, whose differences would be NaN


class Decoder:
    """Beam search; with one beam it is greedy.

    Beams are ranked by the sum of log-probabilities while they grow; a finished one keeps its sum and its place among
    the others. Of those that have ended the best by sum / ((5 + length) / 6) ** alpha is taken (Wu et al. 2016,
    Eq. 14; Vaswani et al. 2017, 6.1: four beams, alpha 0.6, at most 50 pieces more than the source); where none has
    ended in time, the best of all. Each step computes the whole prefix again: sentences here are short, and the
    networks within stay Keras's own.

    Args:
        model: of `examples.models.transformer`.
        beams: how many hypotheses are kept, at least 1.
        alpha: of the length penalty; 0 for none.
        further: pieces that a translation may have more than its source.
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
        """Translates sources int32 [rows, length], padded; the pieces [rows, any length], END and PAD at their ends."""
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
        first = tf.one_hot(tf.zeros(rows, tf.int32), beams, on_value=0.0, off_value=_NEVER)  # the others are its copies
        state = (prefix, first, tf.zeros([rows, beams], tf.bool))
        shapes = (tf.TensorShape([None, None]), tf.TensorShape([None, beams]), tf.TensorShape([None, beams]))
        prefix, sums, ended = tf.while_loop(unfinished, longer, state, shape_invariants=shapes)
        told = tf.reshape(prefix[:, 1:], [rows, beams, -1])
        lengths = tf.reduce_sum(tf.cast(told != PAD, tf.float32), -1)
        scores = sums / ((5.0 + lengths) / 6.0) ** self._alpha + tf.where(ended, 0.0, _NEVER)
        return tf.gather(told, tf.argmax(scores, -1), batch_dims=1)

    def _next(self, prefix: tf.Tensor, memory: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
        """Log-probabilities of the next piece, float32 [rows, beams, vocabulary]; PAD and BEGIN never come."""
        features = self._decoder([prefix, memory, source], training=False)[:, -1]
        logits = tf.cast(self._embedding(features, reverse=True), tf.float32)
        barred = tf.reduce_sum(tf.one_hot([PAD, BEGIN], logits.shape[-1], _NEVER, 0.0), 0)
        log_probabilities = tf.nn.log_softmax(logits + barred)
        return tf.reshape(log_probabilities, [-1, self._beams, logits.shape[-1]])


def _best(sums: tf.Tensor, following: tf.Tensor, ended: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The best continuations of all beams of a row: their sums, the beams that they go on from, and their pieces.

    One that has ended goes on with PAD alone, for nothing.
    """
    beams, vocabulary = following.shape[1:]
    resting = tf.one_hot(PAD, vocabulary, 0.0, _NEVER)
    following = tf.where(ended[..., None], resting, following)
    candidates = tf.reshape(sums[..., None] + following, [-1, beams * vocabulary])
    sums, places = tf.math.top_k(candidates, beams)
    return sums, places // vocabulary, places % vocabulary


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """BLEU of a corpus, 0 to 100, by sacrebleu with its defaults (Post 2018): case counts, tokens are 13a's.

    Raises:
        ValueError: where there are not equally many, or none.
    """
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"Expected a hypothesis for each reference, got {len(hypotheses)} and {len(references)}.")
    return float(sacrebleu.corpus_bleu(list(hypotheses), [list(references)]).score)


def signature() -> str:
    """What sacrebleu's figures are to be quoted with."""
    metric: Any = sacrebleu.BLEU()
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())
