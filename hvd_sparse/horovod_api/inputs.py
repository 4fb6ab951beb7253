"""What users pass to collectives, as tensors that Horovod can move."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.transport.communicator import unknown

_BITS = {tf.uint32: tf.int32, tf.uint64: tf.int64}  # what Horovod does not move -> what it moves, of the same size
_never_written: list[tf.Variable] = []


def as_tensor(value: Any) -> tf.Tensor | tf.IndexedSlices:
    """What a user passes, as a tensor: numbers, lists, arrays and variables of Keras and TensorFlow."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(as_tensor(value.values), as_tensor(value.indices), value.dense_shape)
    tensor = tf.convert_to_tensor(_without_keras(value))
    return tensor if isinstance(value, tf.Tensor | tf.Variable) else not_a_constant(tensor)


def _without_keras(value: Any) -> Any:
    """The TensorFlow variables of Keras's, in lists, too."""
    if isinstance(value, list | tuple):
        return [_without_keras(each) for each in value]
    return value.value if isinstance(value, keras.Variable) else value


def dense(value: Any) -> tf.Tensor:
    """As `as_tensor`, but never `tf.IndexedSlices`."""
    return tf.convert_to_tensor(as_tensor(value))


def not_a_constant(tensor: tf.Tensor) -> tf.Tensor:
    """A constant as a tensor whose collectives TensorFlow leaves alone when it optimises the graph of a function."""
    if not tf.inside_function():
        return tensor
    if not _never_written:
        with tf.init_scope():
            _never_written.append(tf.Variable(0, trainable=False, name="inputs_never_written"))
    return unknown(tensor, _never_written[0])


def carried(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor in a dtype that Horovod moves, bit for bit."""
    if tensor.dtype == tf.bfloat16:
        return tf.cast(tensor, tf.float32)  # not its bits, as gradients go through a cast
    return tf.bitcast(tensor, _BITS[tensor.dtype]) if tensor.dtype in _BITS else tensor


def values_of(moved_tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """What `carried` made of a tensor, in its own dtype again."""
    return tf.bitcast(moved_tensor, dtype) if dtype in _BITS else tf.cast(moved_tensor, dtype)


def moved(tensor: tf.Tensor, move: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """What a collective that computes nothing makes of a tensor."""
    return values_of(move(carried(tensor)), tensor.dtype)


class Widened:
    """A compression of Horovod's, around which bfloat16, which it cannot add, is float32."""

    def __init__(self, compression: Any):
        self._compression = compression

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """What is sent, and what `decompress` needs."""
        wide = tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor
        sent, context = self._compression.compress(wide)
        return sent, (tensor.dtype, context)

    def decompress(self, tensor: tf.Tensor, context: Any) -> tf.Tensor:
        """What came, in the dtype of what was compressed."""
        dtype, own = context
        return tf.cast(self._compression.decompress(tensor, own), dtype)


def compressed(
    tensors: Sequence[tf.Tensor], compression: Any, run: Callable[[list[tf.Tensor]], list[tf.Tensor]]
) -> list[tf.Tensor]:
    """What a collective makes of compressed tensors, in their own dtypes."""
    sent, contexts = zip(*map(compression.compress, tensors), strict=True)
    return [compression.decompress(each, context) for each, context in zip(run(list(sent)), contexts, strict=True)]


def by_dtype(
    tensors: Sequence[tf.Tensor], run: Callable[[list[tf.Tensor], str | None], list[tf.Tensor]], name: str | None
) -> list[tf.Tensor]:
    """Runs a collective of several tensors, of which Horovod takes only those of one dtype together, once for each."""
    groups: dict[tf.DType, list[int]] = collections.defaultdict(list)
    for place, tensor in enumerate(tensors):
        groups[tensor.dtype].append(place)
    results: dict[int, tf.Tensor] = {}
    for dtype, places in groups.items():
        own_name = name and (name if len(groups) == 1 else f"{name}_{dtype.name}")
        results.update(zip(places, run([tensors[place] for place in places], own_name), strict=True))
    return [results[place] for place in range(len(tensors))]
