"""Gives all ranks the variables of one rank, paired by their order and never by their names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from hvd_sparse import topology
from hvd_sparse.communicator import Communicator
from hvd_sparse.gradient_exchange import resource
from hvd_sparse.pairing import Label, compare

MESSAGE_BYTES = 32 * 2**20  # of one broadcast, a larger variable has one of its own
_REMEDY = "None was changed. Make the same model and optimizer on every rank, and build both on every rank, or on none."


@tf.autograph.experimental.do_not_convert
def broadcast(variables: Iterable[Any], root_rank: int = 0, communicator: Communicator | None = None) -> None:
    """Gives all ranks the values of one rank's variables; a collective, eager or in a graph.

    Variables are paired by their order: names say nothing, as Keras numbers the names of layers by what else a process
    has made. All ranks compare shapes and dtypes first, and nothing is changed where these differ.

    Args:
        variables: of Keras or TensorFlow, of any dtype but strings and handles; the same shapes and dtypes in the same
            order on every rank.
        root_rank: the rank, by its number among all, whose values all get.
        communicator: who takes part; all ranks by default.

    Raises:
        ValueError: on every rank alike: where number, shapes or dtypes differ, naming the variables; where
            `root_rank` is none of the ranks; where a dtype cannot be sent.
    """
    group = communicator or topology.world()
    held = [resource(variable) for variable in variables]
    if root_rank not in group.ranks:
        raise ValueError(f"Expected root_rank to be one of the ranks {list(group.ranks)}, got {root_rank!r}.")
    compare([_label(variable) for variable in held], group, "the variables to broadcast", _REMEDY, "broadcast.compare")
    unsent = [variable.name for variable in held if not _is_numeric(variable.dtype)]
    if unsent:
        raise ValueError(f"Only numbers can be broadcast, and these variables hold none: {', '.join(unsent)}.")
    if group.size == 1:
        return
    for number, part in enumerate(_parts(held)):
        _broadcast(part, group, group.ranks.index(root_rank), f"broadcast.{number}")


def _label(variable: tf.Variable) -> Label:
    return Label(variable.name.removesuffix(":0"), (variable.dtype.name, list(variable.shape)))


def _is_numeric(dtype: tf.DType) -> bool:
    return dtype.is_floating or dtype.is_integer or dtype.is_complex or dtype.is_bool


def _parts(variables: Sequence[tf.Variable]) -> list[list[tf.Variable]]:
    """The variables in messages of a size."""
    parts: list[list[tf.Variable]] = []
    filled = MESSAGE_BYTES
    for variable in variables:
        size = _bytes(variable)
        if filled + size > MESSAGE_BYTES:
            parts.append([])
            filled = 0
        parts[-1].append(variable)
        filled += size
    return parts


def _bytes(variable: tf.Variable) -> int:
    return math.prod(variable.shape) * variable.dtype.size


def _broadcast(variables: Sequence[tf.Variable], group: Communicator, root: int, name: str) -> None:
    message = tf.concat([_packed(variable.read_value()) for variable in variables], 0)
    received = tf.split(group.broadcast(message, root, name), [_bytes(variable) for variable in variables])
    for variable, piece in zip(variables, received, strict=True):
        variable.assign(_unpacked(piece, variable))


def _packed(value: tf.Tensor) -> tf.Tensor:
    """A tensor's bytes, whatever its dtype: Horovod cannot send some of them, such as those of random seeds."""
    carried = tf.cast(value, tf.uint8) if value.dtype.is_bool else tf.bitcast(value, tf.uint8)
    return tf.reshape(carried, [-1])


def _unpacked(piece: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
    dtype, shape = variable.dtype, variable.shape
    if dtype.is_bool:
        return tf.reshape(tf.cast(piece, tf.bool), shape)
    width = [] if dtype.size == 1 else [dtype.size]
    return tf.bitcast(tf.reshape(piece, [*shape, *width]), dtype)
