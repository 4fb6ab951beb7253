"""Sends one rank's object to all, or all ranks' objects to all, without pickling unless asked to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as _horovod
import numpy as np
import tensorflow as tf

from hvd_sparse.horovod_api import encoding
from hvd_sparse.transport.eager import eagerly
from hvd_sparse.transport.process_sets import ProcessSet, global_process_set, require_member

_ENCODED, _ERROR = 0, 1  # the content of a message


@tf.autograph.experimental.do_not_convert
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks have called it; runs at once, even while a graph is traced.

    Args:
        process_set: the ranks that wait for each other.

    Raises:
        ValueError: if this rank is not one of them.
    """
    require_member(process_set)
    eagerly(lambda: _horovod.allreduce(tf.constant(0), op=_horovod.Sum, name="barrier", process_set=process_set))


@tf.autograph.experimental.do_not_convert
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    pickled: bool = False,
) -> Any:
    """Gives every rank the object of one rank; runs at once, even while a graph is traced.

    Args:
        obj: None, bool, int, float, str, bytes, NumPy's scalars and arrays, TensorFlow's tensors, and lists, tuples,
            sets and dictionaries of them; ignored on ranks other than `root_rank`.
        root_rank: the rank whose object all get, as numbered among all ranks.
        session: has no effect.
        name: has no effect except for pickled objects.
        process_set: the ranks that take part.
        pickled: send any object with Horovod's own function, which unpickles it. Whoever can send a rank such a message
            can run any code on it: use it only if the network and all ranks are trusted. The same on every rank.

    Returns:
        The object, with its types preserved.

    Raises:
        TypeError: on every rank, if the object has a part that cannot be sent.
        ValueError: if `root_rank` is not one of the ranks.
    """
    require_member(process_set, root_rank)
    if pickled:
        return eagerly(lambda: _horovod.broadcast_object(obj, root_rank, name=name, process_set=process_set))
    is_root = _horovod.rank() == root_rank
    return eagerly(lambda: _broadcast(obj if is_root else None, is_root, root_rank, process_set))


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    pickled: bool = False,
) -> Callable[[Any], Any]:
    """Returns a function that gives every rank the object of one rank.

    Args:
        root_rank: as for `broadcast_object`, like all others.
        session: has no effect.
        name: has no effect except for pickled objects.
        process_set: the ranks that take part.
        pickled: unpickle what arrives; see the warning at `broadcast_object`.

    Returns:
        `broadcast_object` with these arguments.
    """
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set, pickled)


@tf.autograph.experimental.do_not_convert
def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    pickled: bool = False,
) -> list[Any]:
    """Gives every rank the objects of all ranks; runs at once, even while a graph is traced.

    Args:
        obj: as for `broadcast_object`; ranks may pass objects of different types.
        session: has no effect.
        name: has no effect except for pickled objects.
        process_set: the ranks that take part.
        pickled: unpickle what arrives; see the warning at `broadcast_object`. The same on every rank.

    Returns:
        The objects in rank order.

    Raises:
        TypeError: on every rank, if the object of one of them has a part that cannot be sent.
    """
    require_member(process_set)
    if pickled:
        return eagerly(lambda: _horovod.allgather_object(obj, name=name, process_set=process_set))
    return eagerly(lambda: _allgather(obj, process_set))


def _message(obj: Any) -> tuple[int, bytes]:
    """An encoded object, or the reason why it cannot be encoded: so that all ranks learn of it."""
    try:
        return _ENCODED, encoding.encode(obj)
    except TypeError as error:
        return _ERROR, str(error).encode()


def _broadcast(obj: Any, is_root: bool, root_rank: int, process_set: ProcessSet) -> Any:
    kind, text = _message(obj)
    if process_set.size() > 1:
        told = tf.constant([kind, len(text)], tf.int64)
        kind, length = _horovod.broadcast(told, root_rank, process_set=process_set).numpy().tolist()
        own = np.frombuffer(text, np.uint8) if is_root else np.zeros(length, np.uint8)
        text = _horovod.broadcast(tf.constant(own), root_rank, process_set=process_set).numpy().tobytes()
    if kind == _ERROR:
        raise TypeError(text.decode())
    return obj if is_root else encoding.decode(text)


def _allgather(obj: Any, process_set: ProcessSet) -> list[Any]:
    kind, text = _message(obj)
    told, gathered = np.array([[kind, len(text)]]), text
    if process_set.size() > 1:
        told = _horovod.allgather(tf.constant(told, tf.int64), process_set=process_set).numpy()
        sent = tf.constant(np.frombuffer(text, np.uint8))
        gathered = _horovod.allgather(sent, process_set=process_set).numpy().tobytes()
    ends = np.cumsum(told[:, 1])
    texts = [gathered[end - length : end] for end, length in zip(ends, told[:, 1], strict=True)]
    ranks = process_set.ranks or range(len(texts))
    for rank, each, text in zip(ranks, told[:, 0], texts, strict=True):
        if each == _ERROR:
            raise TypeError(f"The object of rank {rank} cannot be gathered. {text.decode()}")
    return [encoding.decode(each) for each in texts]
