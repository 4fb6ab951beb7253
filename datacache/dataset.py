"""The connection to tf.data: whole batches, passed on without a copy.

A batch that is entirely in memory is gathered by a TensorFlow operation that reads the slab itself, so that it never
waits for Python's global lock; any other goes through `Batches.read`. Samples of varying shapes come from Python, a
batch at a time and end to end; `tensors` makes elements of both.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from datacache import lent, tensors
from datacache.batches import AnyBatches
from datacache.elements import Elements, weighted
from datacache.lent import Plan
from datacache.passes import Passes
from datacache.signatures import takes

_AT_A_TIME = 2  # batches gathered at the same time
_READY = 2  # batches that wait for the training step
_AGAIN = (
    "A dataset of one epoch is read a second time, in the same order: for training, leave out epoch=, then each pass "
    "has the next epoch's; for validation, pass shuffle=False in its place. This is silenced by "
    "warnings.filterwarnings('ignore', 'A dataset of one epoch')."
)


def make(batches: AnyBatches, map_func: Callable[..., Any] | None = None, told: bool = True) -> tf.data.Dataset:
    """Makes a dataset of elements, such as (samples, labels), from a rank's batches, in order.

    Args:
        batches: what is read; the dataset may be iterated several times.
        map_func: see `DataCache.dataset`.
        told: whether a second pass, which is like the first, is warned of.

    Returns:
        Samples [b, ...] and labels int64 [b]; b is known to the graph if all batches have the same size. With
        `map_func`, batches of what it returns; without it, varying shapes become a `tf.RaggedTensor`.

    Raises:
        ImportError: if the native operations were compiled for another TensorFlow.
    """
    epoch = _Epoch(lambda _: batches, batches, batches.schedule.has_equal_batches, map_func)
    plan, count = Plan(*map(tf.constant, _plan(batches))), len(batches)
    steps = _Again().steps(count) if told else tf.data.Dataset.range(count)
    made = epoch.dataset(tf.constant(0, tf.int64), plan, steps)
    if map_func is None and not batches.layout.varies:
        return made  # of which tf.data knows the length
    return _with_length(made, count, count * batches.schedule.batch_size)


def make_epochs(
    prepare: Callable[[int], AnyBatches], first_epoch: int, map_func: Callable[..., Any] | None = None
) -> tf.data.Dataset:
    """Makes a dataset each of whose passes is an epoch; see `passes.Passes`.

    Args:
        prepare: maps the number of an epoch to its batches, whose sizes are the same in all epochs.
        first_epoch: the epoch of the first pass.
        map_func: see `DataCache.dataset`.

    Returns:
        As `make`.

    Raises:
        ImportError: as `make`.
    """
    like, passes = prepare(first_epoch), Passes(first_epoch)
    count, epochs = len(like), _Epoch(prepare, like, like.schedule.has_equal_batches, map_func)

    def begin(_: np.int64) -> tuple[np.int64, np.int64]:
        number, epoch = passes.begin()
        return np.int64(number), np.int64(epoch)

    def end(number: np.int64) -> np.int64:
        passes.end(int(number))
        return number

    def one_pass(beginning: tf.Tensor) -> tf.data.Dataset:
        number, epoch = tf.numpy_function(begin, [beginning], [tf.int64, tf.int64])
        number.set_shape([])
        epoch.set_shape([])

        last = tf.data.Dataset.range(min(count, 1)).map(lambda _: tf.numpy_function(end, [number], tf.int64))
        others = tf.data.Dataset.range(count - 1).map(lambda _: number)
        return tf.data.Dataset.zip(epochs.planned(epoch), others.concatenate(last)).map(lambda element, _: element)

    made = tf.data.Dataset.range(1).flat_map(one_pass)
    return _with_length(made, count, count * like.schedule.batch_size)


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
    return tf.data.Dataset.counter(first_epoch).flat_map(lambda number: epochs.planned(number, begin)).prefetch(_READY)


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
    if map_func is not None and takes(map_func, "seed"):
        raise ValueError("Expected a map_func without seed, which belongs to a sample and an epoch: these have none.")
    layout = elements.layout

    def read(indices: tf.Tensor) -> Any:
        samples, labels = tf.numpy_function(take, [indices], [tf.as_dtype(layout.dtype), tf.int64], stateful=False)
        samples, labels = tf.ensure_shape(samples, [None, *layout.shape]), tf.ensure_shape(labels, [None])
        return tensors.opened(elements, samples, labels)

    def wanted(*sample: Any) -> Any:
        made = tensors.cut(elements)(*sample) if layout.varies else sample if len(sample) > 1 else sample[0]
        return tensors.mapped(map_func, made)

    def mapped(indices: tf.Tensor) -> tf.data.Dataset:
        if layout.varies:
            samples = tensors.parted(elements, tensors.read_columns(elements, take, indices))
        else:
            samples = tf.data.Dataset.from_tensor_slices(read(indices))
        samples = samples.map(wanted, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
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


class _Again:
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


def _plan(batches: AnyBatches) -> list[np.ndarray]:
    """What a `Plan` consists of."""
    schedule = batches.schedule
    spans = [schedule.span(step, batches.rank) for step in range(len(batches))]
    weights = np.empty(0, np.float32) if schedule.weights is None else schedule.weights
    order, word = schedule.order.astype(np.int64), np.array(schedule.word, np.int64)
    return [order, np.array(spans, np.int64).reshape(-1, 2), weights, word]


@dataclasses.dataclass(frozen=True)  # AutoGraph passes by methods of a NamedTuple
class _Epoch:
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

    def planned(self, number: tf.Tensor, begin: Callable[[int], None] = lambda epoch: None) -> tf.data.Dataset:
        """The batches of the epoch of this number, told to `begin` when they are first asked for."""

        def plan(number: np.ndarray) -> list[np.ndarray]:
            begin(int(number))
            return _plan(self.prepare(int(number)))

        made = tf.numpy_function(plan, [number], [tf.int64, tf.int64, tf.float32, tf.int64])
        shapes: list[list[int | None]] = [[None], [None, 2], [None], []]
        plan_of_epoch = Plan(*(tf.ensure_shape(part, shape) for part, shape in zip(made, shapes, strict=True)))
        steps = tf.data.Dataset.range(tf.shape(plan_of_epoch.spans, tf.int64)[0])
        return self.dataset(number, plan_of_epoch, steps)

    def dataset(self, number: tf.Tensor, plan: Plan, steps: tf.data.Dataset) -> tf.data.Dataset:
        """The batches of an epoch, from its number, its plan and the numbers of its steps."""
        if self.like.layout.varies:
            samples, cut = self._parted(number, plan, steps), tensors.cut(self.like.elements)
        elif self.map_func is None:
            return self._whole_batches(number, plan, steps, self._finished)
        else:
            samples, cut = self._whole_batches(number, plan, steps, _pair).unbatch(), None

        def wanted(sample: Any, beside: dict[str, tf.Tensor]) -> Any:
            return self._finished(sample if cut is None else cut(*sample), beside)

        samples = samples.map(wanted, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        batched = samples.ragged_batch if self.map_func is None else samples.batch
        return batched(self.like.schedule.batch_size, drop_remainder=self.equal).prefetch(_READY)

    def _beside(self, plan: Plan, step: tf.Tensor) -> dict[str, tf.Tensor]:
        """What accompanies the samples of a batch, each [b, ...]: their weights, and seeds for `map_func`."""
        begin, end = tf.unstack(plan.spans[step])
        found = {}
        if self.like.schedule.weights is not None:
            found["weights"] = plan.weights[begin:end]
        if self.map_func is not None and takes(self.map_func, "seed"):
            indices = plan.order[begin:end]
            found["seed"] = tf.stack([tf.fill(tf.shape(indices), plan.word), indices], axis=1)
        return found

    def _finished(self, element: Any, beside: dict[str, tf.Tensor]) -> Any:
        """What users get of an element, or of a batch, with what accompanies it."""
        seed = {"seed": beside["seed"]} if "seed" in beside else {}
        element = tensors.mapped(self.map_func, element, **seed)
        return weighted(element, beside["weights"], tensors.product) if "weights" in beside else element

    def _whole_batches(
        self, number: tf.Tensor, plan: Plan, steps: tf.data.Dataset, finished: Callable[[Any, Any], Any]
    ) -> tf.data.Dataset:
        """What a function makes of the elements of batches, and of what accompanies them."""
        layout, gather = self.like.layout, lent.gather(self.like)
        count = self.like.schedule.batch_size if self.equal else None

        def read(number: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return self.prepare(int(number)).read(int(step))

        def by_python(step: tf.Tensor) -> lent.Batch:
            dtypes = [tf.as_dtype(layout.dtype), tf.int64]
            samples, labels = tf.numpy_function(read, [number, step], dtypes, stateful=False)
            return samples, labels

        def batch(step: tf.Tensor) -> Any:
            samples, labels = by_python(step) if gather is None else gather(plan, step, lambda: by_python(step))
            samples.set_shape([count, *layout.shape])
            labels.set_shape([count])
            beside = self._beside(plan, step)
            for part in beside.values():
                part.set_shape([count, *part.shape[1:]])
            return finished(tensors.opened(self.like.elements, samples, labels), beside)

        return steps.map(batch, num_parallel_calls=_AT_A_TIME, deterministic=True).prefetch(_READY)

    def _parted(self, number: tf.Tensor, plan: Plan, steps: tf.data.Dataset) -> tf.data.Dataset:
        """The samples of varying shapes, see `tensors.parted`, and what accompanies them."""
        elements = self.like.elements

        def read(number: np.ndarray, step: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
            return self.prepare(int(number)).read(int(step))

        def batch(step: tf.Tensor) -> Any:
            return tuple(tensors.read_columns(elements, read, number, step)), self._beside(plan, step)

        def samples(columns: tuple[tf.Tensor, ...], beside: dict[str, tf.Tensor]) -> tf.data.Dataset:
            parted = tensors.parted(elements, list(columns))
            if not beside:
                return parted.map(lambda *sample: (sample, beside))
            return tf.data.Dataset.zip(parted, tf.data.Dataset.from_tensor_slices(beside))

        return steps.map(batch, num_parallel_calls=_AT_A_TIME, deterministic=True).flat_map(samples)


def _pair(element: Any, beside: dict[str, tf.Tensor]) -> tuple[Any, dict[str, tf.Tensor]]:
    return element, beside
