"""Broadcasts the variables of one rank: variables are paired by their places in the list, not by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import horovod.tensorflow as _horovod
import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.horovod_api.inputs import not_a_constant
from hvd_sparse.optimizers import written
from hvd_sparse.transport.eager import eagerly
from hvd_sparse.transport.process_sets import ProcessSet, global_process_set, require_member

MESSAGE_BYTES = 2**22  # variables share a message up to this size; a larger one gets its own
_MOVED = "bfloat16 bool complex64 complex128 float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64"
_ADVICE = (
    "All ranks must pass the same variables in the same order: first build the same model and optimizer on every rank."
)


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> tf.Operation | None:
    """Gives all ranks the values of one rank's variables, such as `model.variables` and `optimizer.variables`.

    Variables are paired by their places, never by name: "rank 0 loads a model, all broadcast" works. Values are sent
    bit for bit, small ones together. It works eagerly and inside a `tf.function`, where shapes are compared once, at
    tracing.

    Args:
        variables: of Keras or TensorFlow, with the same shapes and dtypes in the same order on every rank; bool,
            integer, floating or complex.
        root_rank: the rank whose values all get, as numbered among all ranks.
        process_set: the ranks that take part.
        inplace: has no effect; at most 4 MiB, or one variable, are held twice in any case.

    Returns:
        None; in a TensorFlow 1 graph the operation that does it.

    Raises:
        ValueError: on every rank, if ranks differ (it names the first variable in which they do), one passes another
            dtype or something that is no variable, or `root_rank` is not one of the ranks.
    """
    if _is_tensorflow_1():
        return _horovod.broadcast_variables(variables, root_rank, process_set=process_set, inplace=inplace)
    entries = [_Entry.of(variable) for variable in variables]
    require_member(process_set, root_rank)
    listed = [entry.variable for entry in entries]
    own = not tf.inside_function() and written.noted(each for each in listed if isinstance(each, tf.Variable))
    any_written = eagerly(lambda: _agree(entries, root_rank, process_set, own))
    if process_set.size() == 1:
        return None
    for number, message in enumerate(_messages(entries)):
        own = [_bytes(entry.value()) for entry in message]
        sent = not_a_constant(tf.concat(own, axis=0))
        name = f"broadcast_variables.{number}"
        received = _horovod.broadcast(sent, root_rank, name=name, ignore_name_scope=True, process_set=process_set)
        parts = tf.split(received, [tf.size(each) for each in own], num=len(own))
        for entry, part in zip(message, parts, strict=True):
            entry.variable.assign(_from_bytes(part, entry.shape, entry.variable.dtype))
    if any_written:
        written.note(listed)  # on one rank, as from a file, and now on all
    return None


@tf.autograph.experimental.do_not_convert
def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """As `broadcast_variables`, and returns the variables' new values.

    Args:
        variables: of Keras or TensorFlow.
        root_rank: the rank whose values all get, as numbered among all ranks.
        name: has no effect except in a TensorFlow 1 graph: variables are paired by their places.
        process_set: the ranks that take part.

    Returns:
        A tensor for each variable.

    Raises:
        ValueError: as `broadcast_variables` does.
    """
    listed = list(variables)
    if _is_tensorflow_1():
        return _horovod.broadcast_(listed, root_rank, name=name, process_set=process_set)
    broadcast_variables(listed, root_rank, process_set)
    return [_Entry.of(variable).value() for variable in listed]


def _is_tensorflow_1() -> bool:
    """Whether a graph for a session is being built, in which nothing can be compared yet."""
    return not tf.executing_eagerly() and not tf.inside_function()


class _Entry(NamedTuple):
    """A variable, and its description for the other ranks."""

    variable: Any
    label: str
    shape: Sequence[int]
    kind: str

    @classmethod
    def of(cls, variable: Any) -> _Entry:
        held = variable.value if isinstance(variable, keras.Variable) else variable
        label = str(getattr(variable, "path", getattr(variable, "name", "")))
        if not isinstance(held, tf.Variable):
            return cls(held, label, (), f"not a variable but of type {type(variable).__name__}")
        if held.shape.is_fully_defined():
            return cls(held, label, held.shape.as_list(), held.dtype.name)
        shape = tf.shape(held)
        known = shape.numpy().tolist() if tf.executing_eagerly() else None
        return cls(held, label, known or (), held.dtype.name if known is not None else "of unknown shape")

    def value(self) -> tf.Tensor:
        return self.variable.read_value()

    @property
    def length(self) -> int:
        return int(np.prod(self.shape)) * self.variable.dtype.size


def _agree(entries: Sequence[_Entry], root_rank: int, process_set: ProcessSet, own_written: bool) -> bool:
    """Compares what all ranks are about to do: by a digest, and in full only if the digests differ.

    Returns:
        Whether any rank's variables were written since the last exchange.
    """
    any_written = own_written
    told = [[entry.kind, list(entry.shape)] for entry in entries]
    if process_set.size() > 1:
        digest = hashlib.sha256(json.dumps([root_rank, told]).encode()).digest()
        own = tf.constant(np.frombuffer(digest + bytes([own_written]), np.uint8)[np.newaxis])
        gathered = _horovod.allgather(own, process_set=process_set).numpy()
        digests, any_written = gathered[:, :-1], bool(gathered[:, -1].any())
        if np.any(digests != digests[0]):
            labelled = [[entry.label, *each] for entry, each in zip(entries, told, strict=True)]
            raise ValueError(f"{_difference(_gather([root_rank, labelled], process_set), process_set)} {_ADVICE}")
    strange = [(place, entry) for place, entry in enumerate(entries) if entry.kind not in _MOVED.split()]
    if strange:
        place, entry = strange[0]
        raise ValueError(
            f"Expected variables of bool or numeric dtype, got {entry.label or 'one'} at position {place}, which is "
            f"{entry.kind}: leave it out, and send its value with hvd.broadcast or hvd.broadcast_object."
        )
    return any_written


def _gather(description: Any, process_set: ProcessSet) -> list[Any]:
    """The description from every rank, in rank order."""
    text = np.frombuffer(json.dumps(description).encode(), np.uint8)
    lengths = _horovod.allgather(tf.constant([len(text)], tf.int64), process_set=process_set).numpy()
    said = _horovod.allgather(tf.constant(text), process_set=process_set).numpy().tobytes()
    ends = np.cumsum(lengths)
    return [json.loads(said[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def _difference(lists: Sequence[Any], process_set: ProcessSet) -> str:
    """The first variable in which a rank differs from the first rank."""
    ranks = process_set.ranks or range(len(lists))
    first_root, first = lists[0]
    for rank, (root, other) in zip(ranks, lists, strict=True):
        if root != first_root:
            return f"Rank {ranks[0]} broadcasts from rank {first_root}, rank {rank} from rank {root}."
        for place in range(max(len(first), len(other))):
            here, there = (listed[place] if place < len(listed) else None for listed in (first, other))
            if here is None or there is None or here[1:] != there[1:]:
                return (
                    f"The ranks pass different variables: at position {place} rank {ranks[0]} has {_told(here)}, "
                    f"rank {rank} has {_told(there)}."
                )
    raise AssertionError("the digests differ, but the variables do not")


def _told(entry: Sequence[Any] | None) -> str:
    return "nothing" if entry is None else f"{entry[0] or 'an unnamed one'} ({entry[1]}, shape {entry[2]})"


def _messages(entries: Sequence[_Entry]) -> list[list[_Entry]]:
    """Groups variables into messages."""
    messages: list[list[_Entry]] = []
    filled = MESSAGE_BYTES
    for entry in entries:
        if filled + entry.length > MESSAGE_BYTES:
            messages.append([])
            filled = 0
        messages[-1].append(entry)
        filled += entry.length
    return messages


def _bytes(tensor: tf.Tensor) -> tf.Tensor:
    tensor = tf.cast(tensor, tf.uint8) if tensor.dtype == tf.bool else tensor
    return tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])


def _from_bytes(flat: tf.Tensor, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
    if dtype == tf.bool:
        return tf.cast(tf.reshape(flat, shape), tf.bool)
    places = [*shape, dtype.size] if dtype.size > 1 else list(shape)
    return tf.bitcast(tf.reshape(flat, places), dtype)
