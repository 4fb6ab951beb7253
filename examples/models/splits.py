"""Where a Transformer is split, and how layers are inserted there."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import keras

SIDES = ("encoder", "decoder")


def usual_places(layers: int, splits: int) -> list[str]:
    """The feed-forward layers after which a Transformer is split, for a number of splits.

    Gupta et al. 2021 (3.2) take the encoder's fifth of six, then the decoder's fifth, then the third of both: the last
    but one and every second one before it. Further splits take the remaining layers, beginning with the last.

    Args:
        layers: number of layers of the encoder, and of the decoder.
        splits: number of splits, from 1 to 2 * layers.

    Returns:
        Names as `thresholded` takes them.

    Raises:
        ValueError: if there are fewer feed-forward layers.
    """
    if not 1 <= splits <= 2 * layers:
        raise ValueError(
            f"Expected 1 to {2 * layers} splits of {layers} layers of the encoder and of the decoder, got {splits}: "
            "each is after a feed-forward layer."
        )
    numbers = [*range(layers - 1, 0, -2), *range(layers, 0, -2)]
    return [f"{side}_{number}" for number in numbers for side in SIDES][:splits]


def thresholded(
    model: keras.Model, places: Collection[str], make_layer: Callable[[], keras.Layer], before_relu: bool = False
) -> keras.Model:
    """Inserts layers into the feed-forward layers of a Transformer, between the two dense layers.

    Args:
        model: from `examples.models.transformer`; must not be used afterwards, as its layers are reused.
        places: feed-forward layers, as "encoder_1" or "decoder_1", numbered in their order.
        make_layer: makes a layer without weights; called once for each place.
        before_relu: whether the layer is placed before the ReLU, right after the first dense layer; else after the
            ReLU.

    Returns:
        A model with the same weights, inputs, output and names.

    Raises:
        ValueError: if the model has no such place.
    """
    known = {name: layer for side in SIDES for name, layer in _feed_forwards(model.get_layer(side), side).items()}
    unknown = [name for name in places if name not in known]
    if unknown:
        raise ValueError(f"Expected feed-forward layers of {', '.join(known)}, got {', '.join(unknown)}.")
    chosen = [known[name] for name in places]

    def called(layer: Any, *inputs: Any, **options: Any) -> Any:
        if not any(layer is each for each in chosen):
            return layer(*inputs, **options)
        if not before_relu:
            return make_layer()(layer(*inputs, **options))
        layer.activation = keras.activations.linear
        return keras.layers.ReLU()(make_layer()(layer(*inputs, **options)))

    encoder, decoder = (
        keras.models.clone_model(model.get_layer(side), clone_function=lambda own: own, call_function=called)
        for side in SIDES
    )
    source, target = model.inputs
    told = decoder([target, encoder(source), source])
    return keras.Model([source, target], model.get_layer("embedding")(told, reverse=True), name=model.name)


def _feed_forwards(side: keras.Model, name: str) -> dict[str, keras.layers.Dense]:
    """The first dense layer of each feed-forward layer, by name."""
    found = [each for each in side.layers if isinstance(each, keras.layers.Dense)]
    inner = [each for each in found if each.activation is keras.activations.relu]
    return {f"{name}_{number}": layer for number, layer in enumerate(inner, start=1)}
