"""Elements as tensors: how batches, as levels keep their samples, become what users get in tf.data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from datacache.buffers import aligned
from datacache.elements import Elements
from datacache.nests import Leaf

Columns: TypeAlias = list[tf.Tensor]


def opened(elements: Elements, samples: tf.Tensor, labels: tf.Tensor) -> Any:
    """The elements of a batch, whose samples have one shape.

    Args:
        elements: what samples are.
        samples: [b, ...], as levels keep them.
        labels: int64 [b].
    """
    last = [labels] if elements.labelled else []
    if elements.packing is None:
        return elements.built([samples, *last])
    places = zip(elements.packing.leaves, elements.packing.places, strict=True)
    return elements.built([*(_unpacked(samples[:, begin:end], leaf) for leaf, (begin, end) in places), *last])


def read_columns(elements: Elements, read: Callable[..., tuple[Any, np.ndarray]], *of: tf.Tensor) -> Columns:
    """A batch's leaves, each as a batch; of one whose shape varies its elements end to end, and the shapes."""
    dtypes, shapes = [], []
    for leaf in elements.leaves:
        dtypes += [_dtype(leaf), tf.int64] if leaf.varies else [_dtype(leaf)]
        shapes += [[None], [None, len(leaf.shape)]] if leaf.varies else [[None, *leaf.shape]]

    def columns(*which: np.ndarray) -> list[np.ndarray]:
        made = []
        for leaf, column in zip(elements.leaves, elements.columns(*read(*which)), strict=True):
            sizes = [np.array([array.shape for array in column], np.int64)] if leaf.varies else []
            made += [_end_to_end(column) if leaf.varies else column, *sizes]
        return made

    made = tf.numpy_function(columns, of, dtypes, stateful=False)
    return [tf.ensure_shape(column, shape) for column, shape in zip(made, shapes, strict=True)]


def parted(elements: Elements, columns: Columns) -> tf.data.Dataset:
    """The samples of a batch, each with the batch's leaves whose shapes vary, and where it lies in them; see `cut`.

    All samples of a batch refer to the same leaves, so nothing is copied until they are cut, several at once.
    """
    taken, wholes, places = iter(columns), [], []
    for leaf in elements.leaves:
        column = next(taken)
        if leaf.varies:
            shapes = next(taken)
            sizes = tf.reduce_prod(shapes, axis=1)
            ends = tf.cumsum(sizes)
            wholes.append(column)
        places.append((ends - sizes, ends, shapes) if leaf.varies else column)
    each = tf.data.Dataset.from_tensor_slices(tuple(places))
    if not wholes:
        return each.map(lambda *place: ((), place))
    return tf.data.Dataset.zip(tf.data.Dataset.from_tensors(tuple(wholes)).repeat(), each)


def cut(elements: Elements) -> Callable[..., Any]:
    """Maps a sample of `parted` to its element."""

    def values(wholes: tuple[tf.Tensor, ...], places: tuple[Any, ...]) -> Iterator[tf.Tensor]:
        whole = iter(wholes)
        for leaf, place in zip(elements.leaves, places, strict=True):
            if leaf.varies:
                begin, end, shape = place
                yield tf.ensure_shape(tf.reshape(next(whole)[begin:end], shape), leaf.shape)
            else:
                yield place

    def made(wholes: tuple[tf.Tensor, ...], places: tuple[Any, ...]) -> Any:
        return elements.built(values(wholes, places))

    return made


def mapped(map_func: Callable[..., Any] | None, element: Any, **arguments: tf.Tensor) -> Any:
    """What a function of a user makes of an element, whose parts are its arguments if it is a tuple."""
    if map_func is None:
        return element
    return map_func(*element, **arguments) if isinstance(element, tuple) else map_func(element, **arguments)


def product(parts: Any, weights: tf.Tensor) -> Any:
    """Weights of a user, in any nest, times these: a number for one element, or [b] for a batch."""

    def times(part: Any) -> tf.Tensor:
        part = tf.convert_to_tensor(part)
        sizes = [-1, *[1] * (part.shape.rank - 1)] if weights.shape.rank else []
        return part * tf.reshape(tf.cast(weights, part.dtype), sizes)

    return tf.nest.map_structure(times, parts)


def _dtype(leaf: Leaf) -> tf.DType:
    return tf.string if leaf.is_text else tf.as_dtype(leaf.dtype)


def _unpacked(packed: tf.Tensor, leaf: Leaf) -> tf.Tensor:
    """A leaf [b, ...] of bytes uint8 [b, n]."""
    dtype, count = _dtype(leaf), packed.shape[0] or tf.shape(packed)[0]
    if dtype == tf.bool:
        values = tf.cast(packed, tf.bool)
    elif dtype.size == 1:
        values = tf.bitcast(packed, dtype)
    else:
        values = tf.bitcast(tf.reshape(packed, [count, packed.shape[1] // dtype.size, dtype.size]), dtype)
    return tf.reshape(values, [count, *leaf.sizes])


def _end_to_end(arrays: list[np.ndarray]) -> np.ndarray:
    """All elements of these arrays, where they are numbers aligned so that TensorFlow does not copy them."""
    flat = [array.reshape(-1) for array in arrays]
    if arrays[0].dtype == object:
        return np.concatenate(flat)
    return np.concatenate(flat, out=aligned(sum(array.nbytes for array in arrays)).view(arrays[0].dtype))
