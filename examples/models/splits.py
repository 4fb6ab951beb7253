"""Where a Transformer is split, and the layers that stand there."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import keras

SIDES = ("encoder", "decoder")


def usual_places(layers: int, splits: int) -> list[str]:
    """The feed-forward layers after which a Transformer is split, by how many splits there are.

    Gupta et al. 2021 (3.2) take the fifth of the encoder's six, then the decoder's, then the third of both: the last
    but one and every second before it. What is left follows from the last one on.

    Args:
        layers: of the encoder, and of the decoder.
        splits: how many, of 1 to 2 layers.

    Returns:
        Names as `thresholded` takes them.

    Raises:
        ValueError: where there are fewer feed-forward layers.
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
    """Puts layers within the feed-forward layers of a Transformer, between the two dense layers.

    Args:
        model: of `examples.models.transformer`; its layers are taken, so it is not to be used any more.
        places: "encoder_1", "decoder_1" and on, the feed-forward layers of both in their order.
        make_layer: makes a layer that has no weights, a new one for each place.
        before_relu: whether it stands before the ReLU, behind the dense layer itself; else after the ReLU.

    Returns:
        A model with the same weights, inputs, output and names.

    Raises:
        ValueError: where the model has no such place.
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
    """The first of the two dense layers of each."""
    found = [each for each in side.layers if isinstance(each, keras.layers.Dense)]
    inner = [each for each in found if each.activation is keras.activations.relu]
    return {f"{name}_{number}": layer for number, layer in enumerate(inner, start=1)}
