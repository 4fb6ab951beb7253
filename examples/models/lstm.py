"""An LSTM encoder and decoder with attention, with the interface of the Transformer."""

from __future__ import annotations

from typing import Any

import keras

from examples.models.transformer import PAD, Sentences
from examples.models.widths import scaled


def lstm(size: Sentences, features: int = 512, seed: int = 0) -> keras.Model:
    """An LSTM translation model, as SparCML trains one (8.3), with the attention of Luong et al. (2015).

    Inputs, output and the layers "encoder", "decoder" and "embedding" are those of `transformer.transformer`, so that
    training and decoding are the same. The initial state of the decoder's layers is computed by a dense layer from the
    mean of the encoder's output over the source (Bahdanau et al. 2015 use its last element). Attention is by dot
    product, over the whole source but padding. The LSTM layers need no mask: they see no later position, padding is at
    the end, and the loss leaves out what is predicted at padding.

    Args:
        size: size of the model; `layers` is the number of LSTM layers of the encoder, and of the decoder.
        features: units of an LSTM layer, and features of the embeddings, at width 1.
        seed: seed of dropout; models with the same seed drop the same features.
    """
    maker = _Maker(scaled(features, size.width), size, seed)
    embedding = keras.layers.ReversibleEmbedding(
        size.vocabulary,
        maker.features,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=maker.features**-0.5),
        name="embedding",
    )
    source = keras.Input((size.length,), dtype="int32")
    target = keras.Input((size.length,), dtype="int32")
    memory = maker.encoder(embedding)(source)
    told = maker.decoder(embedding)([target, memory, source])
    return keras.Model([source, target], embedding(told, reverse=True), name="lstm")


class _Maker:
    """Adds layers; dropout seeds count up, so that models made with the same seed drop the same features."""

    def __init__(self, features: int, size: Sentences, seed: int):
        self.features, self._size, self._seed = features, size, seed

    def encoder(self, embedding: keras.Layer) -> keras.Model:
        """From source to memory."""
        source = keras.Input((self._size.length,), dtype="int32")
        x = self._embedded(source, embedding)
        for _ in range(self._size.layers):
            x = self._dropped(keras.layers.LSTM(self.features, return_sequences=True)(x))
        return keras.Model(source, x, name="encoder")

    def decoder(self, embedding: keras.Layer) -> keras.Model:
        """From target, memory and source to features."""
        target = keras.Input((self._size.length,), dtype="int32")
        memory = keras.Input((self._size.length, self.features))
        source = keras.Input((self._size.length,), dtype="int32")
        shown = keras.ops.not_equal(source, PAD)
        whole = keras.layers.GlobalAveragePooling1D()(memory, mask=shown)
        x = self._embedded(target, embedding)
        for _ in range(self._size.layers):
            begin = [keras.layers.Dense(self.features, activation="tanh")(whole) for _ in range(2)]
            x = self._dropped(keras.layers.LSTM(self.features, return_sequences=True)(x, initial_state=begin))
        context = keras.layers.Attention()([x, memory], mask=[None, shown])
        joined = keras.layers.Concatenate()([x, context])
        x = keras.layers.Dense(self.features, activation="tanh", use_bias=False)(joined)
        return keras.Model([target, memory, source], x, name="decoder")

    def _embedded(self, tokens: Any, embedding: keras.Layer) -> Any:
        return self._dropped(keras.layers.Rescaling(self.features**0.5)(embedding(tokens)))

    def _dropped(self, x: Any) -> Any:
        self._seed += 1
        return keras.layers.Dropout(self._size.dropout, seed=self._seed)(x)
