"""A Transformer of any width, for sentences of fixed or variable length, padded if they are shorter.

At width 1 it has 63,082,496 parameters (Transformer base, Vaswani et al. 2017, one matrix of 37,000 tokens for both
embeddings and the output). As that matrix is the output layer as well, its gradient covers all rows and is dense: there
are no sparse gradients of embeddings (`tf.IndexedSlices`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from examples.models.widths import scaled

PAD = 0  # padding token, which nothing attends to


@dataclasses.dataclass(frozen=True)
class Sentences:
    """The size of a Transformer.

    Attributes:
        width: factor on the features and heads of Transformer base (512, 2048 and 8).
        length: tokens per sentence, in both languages; None for any length, in one model.
        batch: sentence pairs per rank and step.
        vocabulary: number of tokens, for both languages together.
        layers: number of layers of the encoder, and of the decoder.
        dropout: dropout rate of each sublayer's output, and of the sums of embeddings and positions.
    """

    width: float
    length: int | None
    batch: int
    vocabulary: int = 37_000
    layers: int = 6
    dropout: float = 0.1


def transformer(size: Sentences, features: int = 512, hidden: int = 2048, heads: int = 8, seed: int = 0) -> keras.Model:
    """Transformer base (Vaswani et al. 2017, Table 3), with normalisation after each sublayer.

    Its inputs are source and target [batch, length] int32, padded with `PAD` at the end; its output is logits [batch,
    length, vocabulary]. Padding is masked in the source. It needs no mask in the target: no position sees a later one,
    and the loss leaves out what is predicted at padding. Decoding uses the layers "encoder" (source to memory),
    "decoder" (target, memory and source to features) and "embedding" (reversed: features to logits).

    Args:
        size: size of the model.
        features: features at width 1.
        hidden: units between the two dense layers at width 1.
        heads: attention heads at width 1.
        seed: seed of dropout; models with the same seed drop the same features.
    """
    maker = _TransformerMaker(
        scaled(features, size.width), scaled(hidden, size.width), scaled(heads, size.width), size.dropout, seed
    )
    spread = keras.initializers.RandomNormal(stddev=maker.features**-0.5)  # times sqrt(features): 1, as positions
    embedding = keras.layers.ReversibleEmbedding(
        size.vocabulary, maker.features, embeddings_initializer=spread, name="embedding"
    )
    source = keras.Input((size.length,), dtype="int32")
    target = keras.Input((size.length,), dtype="int32")
    memory = maker.encoder(size, embedding)(source)
    told = maker.decoder(size, embedding)([target, memory, source])
    return keras.Model([source, target], embedding(told, reverse=True), name="transformer")


@keras.saving.register_keras_serializable(package="examples")
class Positions(keras.layers.Layer):
    """Scales embeddings [batch, length, features] by sqrt(features) and adds sinusoids (Vaswani et al. 2017, 3.4, 3.5).

    The number of features must be even; sines and cosines alternate.
    """

    def call(self, x: Any) -> Any:
        """Adds positions to embeddings."""
        features = x.shape[-1]
        place = keras.ops.cast(keras.ops.arange(keras.ops.shape(x)[1]), "float32")
        even = keras.ops.arange(0, features, 2, dtype="float32")
        angles = place[:, None] / keras.ops.power(10_000.0, even / features)
        sinusoids = keras.ops.stack([keras.ops.sin(angles), keras.ops.cos(angles)], axis=-1)
        sinusoids = keras.ops.reshape(sinusoids, (-1, features))
        return x * features**0.5 + keras.ops.cast(sinusoids, x.dtype)


class _TransformerMaker:
    """Adds sublayers; dropout seeds count up, so that models made with the same seed drop the same features."""

    def __init__(self, features: int, hidden: int, heads: int, dropout: float, seed: int):
        self.features, self._hidden, self._heads = features, hidden, heads
        self._dropout, self._seed = dropout, seed

    def encoder(self, size: Sentences, embedding: keras.Layer) -> keras.Model:
        """From source to memory."""
        source = keras.Input((size.length,), dtype="int32")
        shown = _shown(source)
        x = self._embedded(source, embedding)
        for _ in range(size.layers):
            x = self._attended(x, x, attention_mask=shown)
            x = self._transformed(x)
        return keras.Model(source, x, name="encoder")

    def decoder(self, size: Sentences, embedding: keras.Layer) -> keras.Model:
        """From target, memory and source to features."""
        target = keras.Input((size.length,), dtype="int32")
        memory = keras.Input((size.length, self.features))
        source = keras.Input((size.length,), dtype="int32")
        shown = _shown(source)
        x = self._embedded(target, embedding)
        for _ in range(size.layers):
            x = self._attended(x, x, use_causal_mask=True)
            x = self._attended(x, memory, attention_mask=shown)
            x = self._transformed(x)
        return keras.Model([target, memory, source], x, name="decoder")

    def _embedded(self, tokens: Any, embedding: keras.Layer) -> Any:
        return self._dropped(Positions()(embedding(tokens)))

    def _attended(self, x: Any, memory: Any, **options: Any) -> Any:
        """Attention from x to memory, added and normalised."""
        attention = keras.layers.MultiHeadAttention(self._heads, self.features // self._heads)
        return self._added(x, attention(x, memory, **options))

    def _transformed(self, x: Any) -> Any:
        """The two dense layers at each position, added and normalised."""
        within = keras.layers.Dense(self._hidden, activation="relu")(x)
        return self._added(x, keras.layers.Dense(self.features)(within))

    def _added(self, x: Any, within: Any) -> Any:
        return keras.layers.LayerNormalization(epsilon=1e-6)(x + self._dropped(within))

    def _dropped(self, x: Any) -> Any:
        self._seed += 1
        return keras.layers.Dropout(self._dropout, seed=self._seed)(x)


def _shown(source: Any) -> Any:
    """The attention mask [batch, 1, length]: every position attends to all but padding."""
    return keras.ops.not_equal(source, PAD)[:, None, :]
