"""The memory level in TensorFlow's graph: an operation gathers batches from the slab, without Python's global lock."""

from __future__ import annotations

import ctypes
import functools
import json
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from datacache.batches import AnyBatches
from datacache.native import SlabHandle
from datacache.slab import Slab

Batch = tuple[tf.Tensor, tf.Tensor]
_LIBRARY = Path(__file__).with_name("_ops.so")

_lent: weakref.WeakKeyDictionary[Slab, int] = weakref.WeakKeyDictionary()  # the number of each slab
_lock = threading.Lock()


class Plan(NamedTuple):
    """An epoch's samples and batches, for the graph.

    Attributes:
        order: int64 [n], the samples in order.
        spans: int64 [steps, 2], where each batch begins and ends in it.
        weights: float32 [n], of the samples; [0] if all count.
        word: int64, see `Schedule`.
    """

    order: tf.Tensor
    spans: tf.Tensor
    weights: tf.Tensor
    word: tf.Tensor


def gather(batches: AnyBatches) -> Callable[[Plan, tf.Tensor, Callable[[], Batch]], Batch] | None:
    """Maps a plan, a step and a fallback to the step's batch; None if the operation cannot read the level."""
    library = _library()
    if library is None or not isinstance(batches.memory, Slab):
        return None
    layout, slab = batches.layout, _number(library, batches.memory, batches)

    def gathered(plan: Plan, step: tf.Tensor, otherwise: Callable[[], Batch]) -> Batch:
        samples, labels, whole = library.datacache_gather(
            order=plan.order,
            spans=plan.spans,
            step=step,
            dtype=tf.as_dtype(layout.dtype),
            shape=layout.shape,
            slab=slab,
            ahead=batches.ahead,
        )
        return tf.cond(whole, lambda: (samples, labels), otherwise)

    return gathered


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
