"""The connection to tf.data: whole batches, passed on without a copy.

A batch that is entirely in memory is gathered by a TensorFlow operation that reads the slab itself, so that it never
waits for Python's global lock; any other goes through `Batches.read`. Samples of varying shapes come from Python, a
batch at a time and end to end; `tensors` makes elements of both.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from datacache import tensors
from datacache.batches import Batches, VaryingBatches
from datacache.elements import Elements
from datacache.native import SlabHandle
from datacache.slab import Slab

_AT_A_TIME = 2  # batches gathered at the same time
_READY = 2  # batches that wait for the training step
_AGAIN = (
    "A dataset of one epoch is read a second time, in the same order: for training, make one for each epoch, with "
    "fit(cache.dataset(batch_size, epoch), initial_epoch=epoch, epochs=epoch + 1), or pass fit the endless one of "
    "cache.training(...). For validation this is fine: silence it with "
    "warnings.filterwarnings('ignore', 'A dataset of one epoch')."
)
_LIBRARY = Path(__file__).with_name("_ops.so")

_Batch = tuple[tf.Tensor, tf.Tensor]
AnyBatches: TypeAlias = Batches | VaryingBatches

_lent: weakref.WeakKeyDictionary[Slab, int] = weakref.WeakKeyDictionary()  # the number of each slab
_lock = threading.Lock()


def make(batches: AnyBatches, map_func: Callable[..., Any] | None = None) -> tf.data.Dataset:
    """Makes a dataset of elements, such as (samples, labels), from a rank's batches, in order.

    Args:
        batches: what is read; the dataset may be iterated several times, and warns at the second, as all passes are
            alike.
        map_func: see `DataCache.dataset`.

    Returns:
        Samples [b, ...] and labels int64 [b]; b is known to the graph if all batches have the same size. With
        `map_func`, batches of what it returns; without it, varying shapes become a `tf.RaggedTensor`.

    Raises:
        ImportError: if the native operations were compiled for another TensorFlow.
    """
    epoch = _Epoch(lambda _: batches, batches, batches.schedule.has_equal_batches, map_func)
    order, spans = map(tf.constant, _plan(batches))
    made = epoch.dataset(tf.constant(0, tf.int64), order, spans, _Passes().steps(len(batches)))
    if map_func is None and not batches.layout.varies:
        return made  # of which tf.data knows the length
    return _with_length(made, len(batches), len(batches) * batches.schedule.batch_size)


def make_stream(
    prepare: Callable[[int], AnyBatches],
    first_epoch: int,
    equal: bool,
    begin: Callable[[int], None] = lambda epoch: None,
    map_func: Callable[..., Any] | None = None,
) -> tf.data.Dataset:
    """Makes a dataset of endless epochs, one after another.

    Args:
        prepare: maps the number of an epoch to its batches, which are all of one cache and one batch size; called when
            an iterator reaches the epoch, and for each batch that is not entirely in memory.
        first_epoch: the epoch that every iterator begins with.
        equal: whether all batches of all epochs have the same size.
        begin: called when an iterator reaches an epoch; an exception ends the iteration.
        map_func: see `DataCache.dataset`.

    Returns:
        As `make`.

    Raises:
        ImportError: as `make`.
    """
    epochs = _Epoch(prepare, prepare(first_epoch), equal, map_func)

    def plan(number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        begin(int(number))
        return _plan(prepare(int(number)))

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        order, spans = tf.numpy_function(plan, [number], [tf.int64, tf.int64])
        order.set_shape([None])
        spans.set_shape([None, 2])
        return epochs.dataset(number, order, spans, tf.data.Dataset.range(tf.shape(spans, tf.int64)[0]))

    return tf.data.Dataset.counter(first_epoch).flat_map(epoch).prefetch(_READY)


def select(
    take: Callable[[np.ndarray], tuple[Any, np.ndarray]],
    elements: Elements,
    rows: tf.data.Dataset,
    map_func: Callable[..., Any] | None = None,
) -> tf.data.Dataset:
    """Makes a dataset of elements from batches that are chosen elsewhere.

    Args:
        take: maps indices to samples, as levels keep them, and labels int64 [b].
        elements: what samples are.
        rows: the indices of each batch, of any shape that `take` accepts.
        map_func: see `DataCache.select`.

    Returns:
        As `make`.

    Raises:
        ValueError: if the elements of `rows` cannot be indices.
    """
    _require_rows(rows)

    layout = elements.layout

    def read(indices: tf.Tensor) -> Any:
        samples, labels = tf.numpy_function(take, [indices], [tf.as_dtype(layout.dtype), tf.int64], stateful=False)
        samples, labels = tf.ensure_shape(samples, [None, *layout.shape]), tf.ensure_shape(labels, [None])
        return tensors.opened(elements, samples, labels)

    def mapped(indices: tf.Tensor) -> tf.data.Dataset:
        if layout.varies:
            samples = tensors.parted(elements, tensors.read_columns(elements, take, indices))
        else:
            samples = tf.data.Dataset.from_tensor_slices(read(indices))
        as_wanted = tensors.cut(elements, map_func) if layout.varies else map_func
        samples = samples.map(as_wanted, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        batched = samples.ragged_batch if map_func is None else samples.batch
        return batched(tf.size(indices, tf.int64))

    whole = map_func is None and not layout.varies
    return (rows.map(read) if whole else rows.flat_map(mapped)).prefetch(1)


def _require_rows(rows: tf.data.Dataset) -> None:
    """Raises an error for a dataset whose elements cannot be batches of indices, as far as tf.data knows."""
    spec = rows.element_spec
    if not isinstance(spec, tf.TensorSpec) or not (spec.dtype.is_integer or spec.dtype == tf.bool):
        raise ValueError(
            f"Expected rows as a dataset of batches of integers, or of masks, got elements of {spec}: map it to the "
            "indices of the samples, such as rows.map(lambda row: tf.cast(row, tf.int64))."
        )
    if spec.shape.rank == 0:
        raise ValueError("Expected rows as a dataset of batches of integers, got single ones: use rows.batch(size).")


def _with_length(made: tf.data.Dataset, length: int, errors: int) -> tf.data.Dataset:
    """Tells tf.data the length of a dataset, which may end earlier after at most this many errors of samples.

    An asserted length that is not reached is an error each time that the next element is asked for, so
    `ignore_errors` would never end. A second dataset, which ends, bounds how often that can be.
    """
    bound = tf.data.Dataset.range(length + errors + 1)
    asserted = made.apply(tf.data.experimental.assert_cardinality(length))
    return tf.data.Dataset.zip((asserted, bound)).map(lambda element, _: element)


class _Passes:
    """Counts how often a dataset of one epoch is read."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def steps(self, count: int) -> tf.data.Dataset:
        """The numbers of this many steps, int64; only the first one, which begins a pass, runs in Python."""
        first = tf.data.Dataset.range(min(count, 1)).map(
            lambda step: tf.ensure_shape(tf.numpy_function(self._begin, [step], tf.int64), [])
        )
        return first.concatenate(tf.data.Dataset.range(1, count))

    def _begin(self, step: np.int64) -> np.int64:
        if next(self._numbers) == 1:
            warnings.warn(_AGAIN, stacklevel=2)
        return step


def _plan(batches: AnyBatches) -> tuple[np.ndarray, np.ndarray]:
    """The samples of an epoch in order, int64 [n], and where each batch begins and ends in it, int64 [steps, 2]."""
    schedule = batches.schedule
    spans = [schedule.span(step, batches.rank) for step in range(len(batches))]
    return schedule.order.astype(np.int64), np.array(spans, np.int64).reshape(-1, 2)


class _Epoch(NamedTuple):
    """How an epoch's batches are made.

    Attributes:
        prepare: maps the number of an epoch to its batches.
        like: the batches of one epoch; those of others have the same layout, level and batch size.
        equal: whether all batches have the same size.
        map_func: see `DataCache.dataset`.
    """

    prepare: Callable[[int], Any]
    like: AnyBatches
    equal: bool
    map_func: Callable[..., Any] | None

    def dataset(self, number: tf.Tensor, order: tf.Tensor, spans: tf.Tensor, steps: tf.data.Dataset) -> tf.data.Dataset:
        """The batches of an epoch, from its number, its plan and the numbers of its steps."""
        if self.like.layout.varies:
            samples, as_wanted = self._parted(number, steps), tensors.cut(self.like.elements, self.map_func)
        elif self.map_func is None:
            return self._whole_batches(number, order, spans, steps)
        else:
            samples, as_wanted = self._whole_batches(number, order, spans, steps).unbatch(), self.map_func
        samples = samples.map(as_wanted, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        batched = samples.ragged_batch if self.map_func is None else samples.batch
        return batched(self.like.schedule.batch_size, drop_remainder=self.equal).prefetch(_READY)

    def _whole_batches(
        self, number: tf.Tensor, order: tf.Tensor, spans: tf.Tensor, steps: tf.data.Dataset
    ) -> tf.data.Dataset:
        layout, gather = self.like.layout, _gather(self.like)
        count = self.like.schedule.batch_size if self.equal else None

        def read(number: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return self.prepare(int(number)).read(int(step))

        def by_python(step: tf.Tensor) -> _Batch:
            dtypes = [tf.as_dtype(layout.dtype), tf.int64]
            samples, labels = tf.numpy_function(read, [number, step], dtypes, stateful=False)
            return samples, labels

        def batch(step: tf.Tensor) -> Any:
            samples, labels = by_python(step) if gather is None else gather(order, spans, step, lambda: by_python(step))
            samples.set_shape([count, *layout.shape])
            labels.set_shape([count])
            return tensors.opened(self.like.elements, samples, labels)

        return steps.map(batch, num_parallel_calls=_AT_A_TIME, deterministic=True).prefetch(_READY)

    def _parted(self, number: tf.Tensor, steps: tf.data.Dataset) -> tf.data.Dataset:
        """The samples of varying shapes; see `tensors.parted`."""
        elements = self.like.elements

        def read(number: np.ndarray, step: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
            return self.prepare(int(number)).read(int(step))

        def batch(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return tuple(tensors.read_columns(elements, read, number, step))

        read_ahead = steps.map(batch, num_parallel_calls=_AT_A_TIME, deterministic=True)
        return read_ahead.flat_map(lambda *columns: tensors.parted(elements, list(columns)))


def _gather(batches: AnyBatches) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor, Callable[[], _Batch]], _Batch] | None:
    """Maps a plan, a step and a fallback to the step's batch; None if the operation cannot read the level."""
    library = _library()
    if library is None or not isinstance(batches.memory, Slab):
        return None
    layout, slab = batches.layout, _number(library, batches.memory, batches)

    def gather(order: tf.Tensor, spans: tf.Tensor, step: tf.Tensor, otherwise: Callable[[], _Batch]) -> _Batch:
        samples, labels, whole = library.datacache_gather(
            order=order,
            spans=spans,
            step=step,
            dtype=tf.as_dtype(layout.dtype),
            shape=layout.shape,
            slab=slab,
            ahead=batches.ahead,
        )
        return tf.cond(whole, lambda: (samples, labels), otherwise)

    return gather


def _number(library: Any, slab: Slab, batches: AnyBatches) -> int:
    """The operation's number for a slab, which is lent to it at the first request."""
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
    """The native operations; None if they are not compiled, and Python does everything."""
    if not _LIBRARY.exists():
        return None
    built_for = json.loads(_LIBRARY.with_suffix(".json").read_text())["tensorflow"]
    if built_for != tf.__version__:
        raise ImportError(
            f"datacache's operations were compiled for TensorFlow {built_for}, this is TensorFlow {tf.__version__}: "
            "compile them again with `pip install --force-reinstall --no-deps .` in the source."
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
