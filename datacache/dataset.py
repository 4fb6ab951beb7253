"""The way into tf.data: whole batches, handed over without a copy.

A batch that is wholly in memory is gathered by a TensorFlow operation that reads the slab itself, so that it never
waits for Python's global lock; any other goes through `Batches.read`. Samples whose shapes vary come from Python, a
batch at a time and end to end, and are parted here.
"""

from __future__ import annotations

import ctypes
import functools
import json
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from datacache.batches import Batches, VaryingBatches
from datacache.buffers import aligned
from datacache.layout import Layout
from datacache.native import SlabHandle
from datacache.slab import Slab

_AT_A_TIME = 2  # batches that are gathered at the same time
_READY = 2  # batches that wait for the training step
_LIBRARY = Path(__file__).with_name("_ops.so")

_Batch = tuple[tf.Tensor, tf.Tensor]

_lent: weakref.WeakKeyDictionary[Slab, int] = weakref.WeakKeyDictionary()  # the number of each slab
_lock = threading.Lock()


def make(batches: Batches | VaryingBatches, map_func: Callable[..., Any] | None = None) -> tf.data.Dataset:
    """Makes a dataset of (samples, labels) of a rank's batches, in order.

    Args:
        batches: what is read; the dataset may be iterated several times.
        map_func: see `DataCache.dataset`.

    Returns:
        Samples [b, ...] and labels int64 [b]; b is known to the graph where all batches are of one size. What is
        batched is what `map_func` returns, if it is given; varying shapes are a `tf.RaggedTensor` without it.

    Raises:
        ImportError: where the native operations were compiled for another TensorFlow.
    """
    if isinstance(batches, Batches) and map_func is None:
        return _whole_batches(batches)
    if isinstance(batches, Batches):
        samples, as_wanted = _whole_batches(batches).unbatch(), map_func
    else:
        samples, as_wanted = _parted(batches), _cut(batches.layout, map_func)
    samples = samples.map(as_wanted, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    batched = samples.ragged_batch if map_func is None else samples.batch
    made = batched(batches.schedule.batch_size, drop_remainder=batches.schedule.has_equal_batches)
    return made.prefetch(_READY).apply(tf.data.experimental.assert_cardinality(len(batches)))


def _whole_batches(batches: Batches) -> tf.data.Dataset:
    layout, schedule = batches.layout, batches.schedule
    count = schedule.batch_size if schedule.has_equal_batches else None
    gather = _gather(batches)

    def batch(step: tf.Tensor) -> _Batch:
        samples, labels = _by_python(batches, step) if gather is None else gather(step)
        samples.set_shape([count, *layout.shape])
        labels.set_shape([count])
        return samples, labels

    steps = tf.data.Dataset.range(len(batches))
    return steps.map(batch, num_parallel_calls=_AT_A_TIME, deterministic=True).prefetch(_READY)


def _parted(batches: VaryingBatches) -> tf.data.Dataset:
    """The samples, each as its whole batch's elements end to end, and where it begins and ends in them; see `_cut`.

    All samples of a batch refer to the same elements, so that nothing is copied until they are cut, several at once.
    """
    dtype = tf.as_dtype(batches.layout.dtype)

    def read(step: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        samples, labels = batches.read(int(step))
        return _end_to_end(samples), np.array([sample.shape for sample in samples], np.int64), labels

    def batch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        elements, shapes, labels = tf.numpy_function(read, [step], [dtype, tf.int64, tf.int64], stateful=False)
        elements.set_shape([None])
        shapes.set_shape([None, len(batches.layout.shape)])
        labels.set_shape([None])
        return elements, shapes, labels

    def part(elements: tf.Tensor, shapes: tf.Tensor, labels: tf.Tensor) -> tf.data.Dataset:
        sizes = tf.reduce_prod(shapes, axis=1)
        ends = tf.cumsum(sizes)
        places = tf.data.Dataset.from_tensor_slices((ends - sizes, ends, shapes, labels))
        return tf.data.Dataset.zip(tf.data.Dataset.from_tensors(elements).repeat(), places)

    steps = tf.data.Dataset.range(len(batches))
    return steps.map(batch, num_parallel_calls=_AT_A_TIME, deterministic=True).flat_map(part)


def _cut(layout: Layout, map_func: Callable[..., Any] | None) -> Callable[..., Any]:
    """From an element of `_parted` to a sample and its label, or to what the function makes of them."""

    def cut(elements: tf.Tensor, place: tuple[tf.Tensor, ...]) -> Any:
        begin, end, shape, label = place
        sample = tf.ensure_shape(tf.reshape(elements[begin:end], shape), layout.shape)
        return (sample, label) if map_func is None else map_func(sample, label)

    return cut


def _end_to_end(samples: list[np.ndarray]) -> np.ndarray:
    """All elements of these arrays, aligned as TensorFlow wants it in order not to copy them."""
    made = aligned(sum(sample.nbytes for sample in samples)).view(samples[0].dtype)
    return np.concatenate([sample.reshape(-1) for sample in samples], out=made)


def _by_python(batches: Batches, step: tf.Tensor) -> _Batch:
    def read(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return batches.read(int(step))

    dtype = tf.as_dtype(batches.layout.dtype)
    samples, labels = tf.numpy_function(read, [step], [dtype, tf.int64], stateful=False)
    return samples, labels


def _gather(batches: Batches) -> Callable[[tf.Tensor], _Batch] | None:
    """From a step to its batch, by the native operation where that can be; None where it cannot read the level."""
    library = _library()
    if library is None or not isinstance(batches.memory, Slab) or len(batches) == 0:
        return None
    layout, schedule, number = batches.layout, batches.schedule, _number(library, batches.memory, batches)
    spans = np.array([schedule.span(step, batches.rank) for step in range(len(batches))], np.int64)
    with tf.device("CPU"):
        order_tensor, spans_tensor = tf.constant(schedule.order, tf.int64), tf.constant(spans)

    def gather(step: tf.Tensor) -> _Batch:
        samples, labels, whole = library.datacache_gather(
            order=order_tensor,
            spans=spans_tensor,
            step=step,
            dtype=tf.as_dtype(layout.dtype),
            shape=layout.shape,
            slab=number,
            ahead=batches.ahead,
        )
        return tf.cond(whole, lambda: (samples, labels), lambda: _by_python(batches, step))

    return gather


def _number(library: Any, slab: Slab, batches: Batches) -> int:
    """What the operation knows a slab by; lent to it when it is first asked for."""
    with _lock:
        if slab not in _lent:
            native, size = _registry(), batches.layout.size
            number: int
            handle = slab.lend(lambda: native.datacache_take_back(number))
            number = native.datacache_lend(handle)
            batches.counters.include(lambda: _served(native.datacache_served(number), size))
            _lent[slab] = number
        return _lent[slab]


def _served(samples: int, size: int) -> dict[str, float]:
    return {"samples.memory": samples, "bytes.memory": samples * size} if samples else {}


@functools.cache
def _library() -> Any:
    """The native operations; None where they have not been compiled, and Python does it all."""
    if not _LIBRARY.exists():
        return None
    built_for = json.loads(_LIBRARY.with_suffix(".json").read_text())["tensorflow"]
    if built_for != tf.__version__:
        raise ImportError(
            f"datacache's operations were compiled for TensorFlow {built_for}, this is TensorFlow {tf.__version__}: "
            "compile them again with `pip install --no-build-isolation --force-reinstall --no-deps .` in the source."
        )
    return tf.load_op_library(str(_LIBRARY))


@functools.cache
def _registry() -> ctypes.CDLL:
    """The functions of ops/datacache/lent_slabs.h that are in the operations' library."""
    library = ctypes.CDLL(str(_LIBRARY))
    library.datacache_lend.restype, library.datacache_lend.argtypes = ctypes.c_int64, [ctypes.POINTER(SlabHandle)]
    library.datacache_take_back.restype, library.datacache_take_back.argtypes = None, [ctypes.c_int64]
    library.datacache_served.restype, library.datacache_served.argtypes = ctypes.c_uint64, [ctypes.c_int64]
    return library
