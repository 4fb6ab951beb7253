"""Converts what users pass to collectives into tensors that Horovod can send."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.transport.communicator import unknown

_BITS = {tf.uint32: tf.int32, tf.uint64: tf.int64}  # what Horovod cannot send -> what it can, of the same size


def as_tensor(value: Any) -> tf.Tensor | tf.IndexedSlices:
    """Converts a user's value to a tensor: numbers, lists, arrays, and Keras or TensorFlow variables."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(as_tensor(value.values), as_tensor(value.indices), value.dense_shape)
    tensor = tf.convert_to_tensor(_without_keras(value))
    return tensor if isinstance(value, tf.Tensor | tf.Variable) else not_a_constant(tensor)


def place(device: str, tensors: Sequence[tf.Tensor]) -> str:
    """Where tensors are combined: on the device that is given, or where the first of them is.

    In eager code TensorFlow takes "" for the CPU, and would copy what is on a GPU.
    """
    return tensors[0].device if tf.executing_eagerly() and tensors and not device else device


def _without_keras(value: Any) -> Any:
    """The TensorFlow variables of Keras variables, also inside lists."""
    if isinstance(value, list | tuple):
        return [_without_keras(each) for each in value]
    return value.value if isinstance(value, keras.Variable) else value


def dense(value: Any) -> tf.Tensor:
    """As `as_tensor`, but never returns `tf.IndexedSlices`."""
    return tf.convert_to_tensor(as_tensor(value))


def not_a_constant(tensor: tf.Tensor) -> tf.Tensor:
    """Hides that a tensor is a constant, so that TensorFlow does not run its collectives when it optimises a graph."""
    return unknown(tensor) if tf.inside_function() else tensor


def carried(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor in a dtype that Horovod can send, bit for bit."""
    if tensor.dtype == tf.bfloat16:
        return tf.cast(tensor, tf.float32)  # not its bits, as gradients pass through a cast
    return tf.bitcast(tensor, _BITS[tensor.dtype]) if tensor.dtype in _BITS else tensor


def values_of(moved_tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Restores the dtype of what `carried` has converted."""
    return tf.bitcast(moved_tensor, dtype) if dtype in _BITS else tf.cast(moved_tensor, dtype)


def moved(tensor: tf.Tensor, move: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Applies a collective that only moves values."""
    return values_of(move(carried(tensor)), tensor.dtype)


class Widened:
    """One of Horovod's compressions, which sends bfloat16 as float32 because Horovod cannot add it."""

    def __init__(self, compression: Any):
        self._compression = compression

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns what is sent, and the context that `decompress` needs."""
        wide = tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor
        sent, context = self._compression.compress(wide)
        return sent, (tensor.dtype, context)

    def decompress(self, tensor: tf.Tensor, context: Any) -> tf.Tensor:
        """Returns the result in the dtype of the tensor that was compressed."""
        dtype, own = context
        return tf.cast(self._compression.decompress(tensor, own), dtype)


def compressed(
    tensors: Sequence[tf.Tensor], compression: Any, run: Callable[[list[tf.Tensor]], list[tf.Tensor]]
) -> list[tf.Tensor]:
    """Applies a collective to compressed tensors; returns the results in their own dtypes."""
    sent, contexts = zip(*map(compression.compress, tensors), strict=True)
    return [compression.decompress(each, context) for each, context in zip(run(list(sent)), contexts, strict=True)]


def by_dtype(
    tensors: Sequence[tf.Tensor], run: Callable[[list[tf.Tensor], str | None], list[tf.Tensor]], name: str | None
) -> list[tf.Tensor]:
    """Runs a collective of several tensors once for each dtype, as Horovod only groups tensors of one dtype."""
    groups: dict[tf.DType, list[int]] = collections.defaultdict(list)
    for place, tensor in enumerate(tensors):
        groups[tensor.dtype].append(place)
    results: dict[int, tf.Tensor] = {}
    for dtype, places in groups.items():
        own_name = name and (name if len(groups) == 1 else f"{name}_{dtype.name}")
        results.update(zip(places, run([tensors[place] for place in places], own_name), strict=True))
    return [results[place] for place in range(len(tensors))]
