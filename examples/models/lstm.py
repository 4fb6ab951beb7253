"""An encoder and a decoder of LSTM cells with attention, in the rooms of the Transformer."""

from __future__ import annotations

from typing import Any

import keras

from examples.models.transformer import PAD, Sentences
from examples.models.widths import scaled


def lstm(size: Sentences, features: int = 512, seed: int = 0) -> keras.Model:
    """A translation model of LSTM cells, as SparCML trains one (8.3), with the attention of Luong et al. (2015).

    Inputs, output and the layers "encoder", "decoder" and "embedding" are those of `transformer.transformer`, so that
    training and decoding are the same. The decoder's cells begin at what a dense layer makes of the mean of the
    encoder's output over the source (Bahdanau et al. 2015 take its last one); attention is by dot product, over all
    of the source but padding. The cells themselves need no mask: none sees what comes later, padding stands at the
    ends, and what is told there is for the loss to leave out.

    Args:
        size: how large it is; `layers` are the cells of the encoder, and of the decoder.
        features: of a cell and of the embeddings at width 1.
        seed: of dropout: two models with the same seed drop alike.
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
    """Adds cells; dropout is numbered, so that two models made alike drop alike."""

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
