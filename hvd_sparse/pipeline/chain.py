"""The parts of a model that one rank computes, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from hvd_sparse.pipeline.threshold import Threshold

Part: TypeAlias = keras.layers.Layer | Callable[[], keras.layers.Layer]
"""A layer or model, or what makes one."""


class Chain:
    """Consecutive parts with the thresholds between them.

    Attributes:
        layers: the parts, and the thresholds behind all but the last, whose threshold is applied when sending.
    """

    def __init__(self, parts: Sequence[keras.layers.Layer], thresholds: Sequence[Threshold | None], begins: bool):
        """Takes the parts, the thresholds between them, and whether the first part takes the batch."""
        self._parts, self._begins = list(parts), begins
        self._thresholds = [*thresholds, None]
        self.layers = [*self._parts, *(each for each in self._thresholds if each is not None)]

    def __call__(self, activation: tf.Tensor | None, batch: Any, training: bool) -> Any:
        """The output of the last part.

        Args:
            activation: the input of the first part; None if it takes the batch.
            batch: the model's inputs, of which parts take those that they name.
            training: as for a layer.
        """
        output: Any = activation
        for number, (part, threshold) in enumerate(zip(self._parts, self._thresholds, strict=True)):
            if number == 0 and self._begins:
                output = part(_named(part, batch), training=training)
            else:
                output = part(_with_named(part, output, batch), training=training)
            if threshold is not None:
                output = threshold(_one(output, part), training=training)
        return output

    def one_output(self, output: Any) -> tf.Tensor:
        """The output, if it is a single tensor [rows, ..., d].

        Raises:
            ValueError: if it is not.
        """
        return _one(output, self._parts[-1])


def made(part: Part) -> keras.layers.Layer:
    """The layer that a part is, or creates.

    Raises:
        TypeError: if it is not one.
    """
    layer = part if isinstance(part, keras.layers.Layer) else part() if callable(part) else None
    if not isinstance(layer, keras.layers.Layer):
        raise TypeError(f"Expected a Keras layer or model, or a function that makes one, got {type(part).__name__}.")
    return layer


def _named(part: Any, batch: Any) -> Any:
    """The inputs that the first part takes."""
    if not isinstance(batch, dict) or not getattr(part, "inputs", None):
        return batch
    return {name: _from(batch, name, part) for name in _names(part)}


def _with_named(part: Any, activation: tf.Tensor, batch: Any) -> Any:
    """The inputs of a later part: the activation, and those of the model's inputs that it names."""
    names = _names(part)[1:]
    if not names:
        return activation
    if not isinstance(batch, dict):
        raise ValueError(
            f"Expected inputs by name, as {part.name} takes {names} besides the activation: pass x as a dict."
        )
    return [activation, *(_from(batch, name, part) for name in names)]


def _names(part: Any) -> list[str]:
    return [each.name for each in getattr(part, "inputs", None) or []]


def _from(batch: dict[str, Any], name: str, part: Any) -> Any:
    if name not in batch:
        raise ValueError(f"Expected an input {name!r}, which {part.name} takes, got {sorted(batch)}.")
    return batch[name]


@tf.autograph.experimental.do_not_convert
def _one(output: Any, part: Any) -> tf.Tensor:
    if not tf.is_tensor(output) or output.shape.rank is None or output.shape.rank < 2:
        got = f"{len(tf.nest.flatten(output))} tensors" if not tf.is_tensor(output) else f"shape {output.shape}"
        raise ValueError(
            f"Expected one tensor [rows, ..., d] from {part.name} for the next stage, got {got}: split "
            "where a single tensor goes on, and pass whatever else later stages need as inputs of the model."
        )
    return output
