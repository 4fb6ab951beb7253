"""The sum of gradients over micro-batches.

TensorFlow takes long to hand rows (`tf.IndexedSlices`) to a function, and to call an operation for each variable: a
model with many tables would spend most of a step so. Here functions get plain tensors, all at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.pipeline import clipping
from hvd_sparse.pipeline.passes import Forward

NONE, DENSE, ROWS = 0, 1, 2
"""The forms of a gradient: no tensor, one, or values and row numbers."""


def apart(gradients: Sequence[Any]) -> tuple[list[tf.Tensor], tuple[int, ...]]:
    """The tensors of gradients, and their forms."""
    tensors, forms = [], []
    for each in gradients:
        if isinstance(each, tf.IndexedSlices):
            tensors += [each.values, each.indices]
            forms.append(ROWS)
        elif each is not None:
            tensors.append(each)
            forms.append(DENSE)
        else:
            forms.append(NONE)
    return tensors, tuple(forms)


@tf.autograph.experimental.do_not_convert
def together(tensors: Sequence[tf.Tensor], forms: Sequence[int], variables: Sequence[Any]) -> list[Any]:
    """The gradients of variables, of which `apart` has made tensors."""
    left, gradients = iter(tensors), []
    for form, variable in zip(forms, variables, strict=True):
        if form == ROWS:
            gradients.append(tf.IndexedSlices(next(left), next(left), _shape(tuple(variable.shape))))
        else:
            gradients.append(next(left) if form == DENSE else None)
    return gradients


def _shape(shape: tuple[int, ...]) -> tf.Tensor:
    return _eager_shape(shape) if tf.executing_eagerly() else tf.constant(shape, tf.int32)


@functools.lru_cache(maxsize=1024)
def _eager_shape(shape: tuple[int, ...]) -> tf.Tensor:
    return tf.constant(shape, tf.int32)


class Gradients:
    """The sum of the gradients of a batch, micro-batch by micro-batch, in order."""

    def __init__(self, model: keras.Model):
        """Takes whose variables and loss scaling count; the variables are there by the first backward pass."""
        self._model = model
        self._variables: list[Any] = []
        self._tensors: list[tf.Tensor] = []
        self._forms: tuple[int, ...] = ()

    @property
    def sums(self) -> list[Any]:
        """Of each variable, in their order; None where there is no gradient."""
        return together(self._tensors, self._forms, self._variables)

    def backward(self, forward: Forward, gradient: tf.Tensor | None) -> tf.Tensor | None:
        """Adds one micro-batch's.

        Args:
            forward: of the micro-batch.
            gradient: of the activation that was handed on; None in the last stage.

        Returns:
            The gradient of the activation that came in; None in the first stage.
        """
        self._variables = self._variables or list(self._model.trainable_variables)
        sources = [*self._variables, *([] if forward.source is None else [forward.source])]
        given = None
        if gradient is not None:
            output, penalty = forward.targets
            given = [tf.cast(gradient, output.dtype), self._model.optimizer.scale_loss(tf.ones_like(penalty))]
        found = forward.tape.gradient(forward.targets, sources, given)
        self._add(*apart(found[: len(self._variables)]))
        if forward.source is None:
            return None
        return tf.zeros_like(forward.source) if found[-1] is None else found[-1]

    def squares(self) -> float:
        """The sum of their squares, as `clipping.squares` has it."""
        return clipping.squares(self.sums, self._model.optimizer)

    def are_finite(self) -> bool:
        """Whether all of the sums are."""
        return not self._tensors or bool(_all_finite(self._tensors))

    def _add(self, tensors: list[tf.Tensor], forms: tuple[int, ...]) -> None:
        if not self._forms:
            self._tensors, self._forms = tensors, forms
        elif forms == self._forms:
            self._tensors = _adding(forms)(self._tensors, tensors)
        else:
            others = together(tensors, forms, self._variables)
            summed = [_plus(*each) for each in zip(self.sums, others, strict=True)]
            self._tensors, self._forms = apart(summed)


@functools.partial(tf.function, reduce_retracing=True, autograph=False)
def _all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in tensors if each.dtype.is_floating])


@functools.lru_cache(maxsize=8)
def _adding(forms: tuple[int, ...]) -> Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], list[tf.Tensor]]:
    """What adds tensors of these forms."""
    of_rows = [form == ROWS for form in forms for _ in range(form)]

    @functools.partial(tf.function, reduce_retracing=True, autograph=False)
    def add(totals: Sequence[tf.Tensor], others: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        pairs = zip(of_rows, totals, others, strict=True)
        return [tf.concat([total, other], 0) if rows else total + other for rows, total, other in pairs]

    return add


def _plus(total: Any, other: Any) -> Any:
    """Two gradients added, of any form."""
    if total is None or other is None:
        return other if total is None else total
    if isinstance(total, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        values = tf.concat([total.values, other.values], 0)
        return tf.IndexedSlices(values, tf.concat([total.indices, other.indices], 0), total.dense_shape)
    return tf.convert_to_tensor(total) + tf.convert_to_tensor(other)
