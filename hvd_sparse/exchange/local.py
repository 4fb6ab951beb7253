"""Variables that are not exchanged, as each rank has its own."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.optimizers.variables import resource


class LocalVariables:
    """The variables that were registered as local: directly, which does not keep them alive, or by their layers."""

    def __init__(self) -> None:
        self._variables: list[weakref.ref[Any]] = []
        self._layers: list[keras.layers.Layer] = []

    def __bool__(self) -> bool:
        return bool(self._variables or self._layers)

    def add(self, variable: Any) -> None:
        """Adds a variable of Keras or TensorFlow."""
        self._variables.append(weakref.ref(variable))

    def add_layers(self, layers: Iterable[keras.layers.Layer]) -> None:
        """Adds all trainable variables of layers, including those that are not created yet.

        Raises:
            ValueError: if one of them is not a layer.
        """
        listed = list(layers)
        for layer in listed:
            if not isinstance(layer, keras.layers.Layer):
                raise ValueError(f"Expected local layers to be Keras layers, got {type(layer).__name__}.")
        self._layers.extend(listed)

    def variables(self) -> list[Any]:
        """Those that there are now."""
        alive = [variable for variable in (each() for each in self._variables) if variable is not None]
        return [*alive, *(weight for layer in self._layers for weight in layer.trainable_weights)]

    def are(self, variables: Sequence[Any]) -> list[bool]:
        """For each variable, whether it is local."""
        local = {id(resource(variable)) for variable in self.variables()}
        return [id(resource(variable)) in local for variable in variables]


def divided(gradient: tf.Tensor | tf.IndexedSlices, divisor: int) -> tf.Tensor | tf.IndexedSlices:
    """A gradient divided by a number."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / divisor, gradient.indices, gradient.dense_shape)
    return gradient / divisor
