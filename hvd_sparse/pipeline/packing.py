"""The gradients of many variables in few tensors.

The rows of embedding tables of the same width are stored one after another, each with the number of its table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

Packed: TypeAlias = dict[tuple[int, ...], tuple[tf.Tensor, ...]]
"""Gradients by the numbers of their variables, in the order in which the model has these: (gradient,) where it is
dense, (values, indices) where it is rows, and (values, indices, owners) for the rows of several variables, where
`owners` int32 tells which of them each row is of. Variables without a gradient do not occur."""


@tf.autograph.experimental.do_not_convert
def pack(gradients: Sequence[Any]) -> Packed:
    """Packs rows of the same form together.

    Args:
        gradients: for each variable a tensor, `tf.IndexedSlices` or None.
    """
    packed: Packed = {}
    alike: dict[Any, list[int]] = {}
    for number, each in enumerate(gradients):
        if isinstance(each, tf.IndexedSlices):
            form = (each.values.dtype, each.indices.dtype, tuple(each.values.shape[1:]))
            alike.setdefault(form, []).append(number)
        elif each is not None:
            packed[(number,)] = (each,)
    for numbers in alike.values():
        packed[tuple(numbers)] = _rows([gradients[number] for number in numbers])
    return packed


@tf.autograph.experimental.do_not_convert
def unpack(packed: Packed, variables: Sequence[Any]) -> list[Any]:
    """The gradients of the variables whose rows `pack` has put together; None if there is none."""
    gradients: list[Any] = [None] * len(variables)
    for numbers, tensors in packed.items():
        if len(tensors) == 1:
            gradients[numbers[0]] = tensors[0]
            continue
        values, indices, *owners = tensors
        of_each = [[values], [indices]]
        if owners:
            of_each = [tf.dynamic_partition(each, owners[0], len(numbers)) for each in (values, indices)]
        for number, own_values, own_indices in zip(numbers, *of_each, strict=True):
            shape = tf.constant(tuple(variables[number].shape), tf.int32)
            gradients[number] = tf.IndexedSlices(own_values, own_indices, shape)
    return gradients


def each_value(packed: Packed, change: Callable[[tf.Tensor], tf.Tensor]) -> Packed:
    """The same with all values changed; the row numbers stay."""
    return {numbers: (change(values), *rows) for numbers, (values, *rows) in packed.items()}


def _rows(slices: Sequence[tf.IndexedSlices]) -> tuple[tf.Tensor, ...]:
    if len(slices) == 1:
        return slices[0].values, slices[0].indices
    lengths = tf.stack([tf.shape(each.indices)[0] for each in slices])
    owners = tf.repeat(tf.range(len(slices)), lengths)
    return tf.concat([each.values for each in slices], 0), tf.concat([each.indices for each in slices], 0), owners
