"""The sum of gradients over micro-batches.

TensorFlow takes long to pass rows (`tf.IndexedSlices`) to a function, to call an operation for each variable, and to
return many tensors: a model with many tables would spend most of a step on this. So the rows of many variables are kept
in a few tensors, from the backward pass to the optimizer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.pipeline import clipping
from hvd_sparse.pipeline.packing import Packed, pack, unpack
from hvd_sparse.pipeline.passes import Finished, Recorded


class Gradients:
    """The sum of the gradients of a batch, micro-batch by micro-batch, in order.

    Attributes:
        packed: the sum so far.
    """

    def __init__(self, model: keras.Model):
        """Takes the model with the variables and the loss scaling; variables must exist by the first backward pass."""
        self._model = model
        self.packed: Packed = {}

    @property
    def sums(self) -> list[Any]:
        """The sum for each variable, in their order; None if there is no gradient."""
        return unpack(self.packed, self._model.trainable_variables)

    def backward(self, forward: Recorded | Finished, gradient: tf.Tensor | None) -> tf.Tensor | None:
        """Adds the gradients of one micro-batch.

        Args:
            forward: what the micro-batch's forward pass returned.
            gradient: of the activation that was sent on; None in the last stage.

        Returns:
            The gradient of the activation that came in; None in the first stage.
        """
        found, of_source = forward.backward(gradient)
        if not self.packed:
            self.packed = found
        elif _layout(found) == _layout(self.packed):
            self.packed = _added(self.packed, found)
        else:
            others = unpack(found, self._model.trainable_variables)
            self.packed = pack([_plus(*each) for each in zip(self.sums, others, strict=True)])
        return of_source

    def squares(self) -> float:
        """The sum of the gradients' squares, as in `clipping.squares`."""
        return clipping.squares(self.packed, self._model.optimizer)

    def are_finite(self) -> bool:
        """Whether all sums are finite."""
        return not self.packed or bool(_all_finite([values for values, *_ in self.packed.values()]))


def _layout(packed: Packed) -> dict[tuple[int, ...], int]:
    return {numbers: len(tensors) for numbers, tensors in packed.items()}


@functools.partial(tf.function, reduce_retracing=True, autograph=False)
def _all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in tensors if each.dtype.is_floating])


@functools.partial(tf.function, reduce_retracing=True, autograph=False)
def _added(total: Packed, other: Packed) -> Packed:
    """The sum of two packed gradients of the same layout."""
    return {numbers: _sum(tensors, other[numbers]) for numbers, tensors in total.items()}


def _sum(total: Sequence[tf.Tensor], other: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
    if len(total) == 1:
        return (total[0] + other[0],)
    return tuple(tf.concat(each, 0) for each in zip(total, other, strict=True))


def _plus(total: Any, other: Any) -> Any:
    """The sum of two gradients of any form."""
    if total is None or other is None:
        return other if total is None else total
    if isinstance(total, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        values = tf.concat([total.values, other.values], 0)
        return tf.IndexedSlices(values, tf.concat([total.indices, other.indices], 0), total.dense_shape)
    return tf.convert_to_tensor(total) + tf.convert_to_tensor(other)
