"""Indices of elements and rows, which are int32 here and often int64 where they come from."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

OUTSIDE = -1  # stands for an index that int32 cannot hold: outside of every vector


def as_int32(indices: Any, name: str) -> tf.Tensor:
    """The same indices as int32.

    Args:
        indices: int32 or int64, any shape; a tensor, an array or a list.
        name: what the message calls them.

    Raises:
        TypeError: where they are no integers of 32 or 64 bits.
        tf.errors.InvalidArgumentError: where int32 cannot hold one; it says which.
    """
    given = _integers(indices, name)
    if given.dtype == tf.int32:
        return given
    narrow = tf.cast(given, tf.int32)
    message = f"Expected {name} below 2^31 in magnitude; the first that do not fit int32 stand below as x"
    with tf.control_dependencies([tf.debugging.assert_equal(given, tf.cast(narrow, tf.int64), message)]):
        return tf.identity(narrow)


def marked_int32(indices: Any, name: str) -> tf.Tensor:
    """The same indices as int32, `OUTSIDE` in the place of those that int32 cannot hold; arguments as of `as_int32`."""
    given = _integers(indices, name)
    narrow = tf.cast(given, tf.int32)
    if given.dtype == tf.int32:
        return narrow
    return tf.where(given == tf.cast(narrow, tf.int64), narrow, OUTSIDE)


def _integers(indices: Any, name: str) -> tf.Tensor:
    # A hint would have an array of int64 cut to int32.
    given = tf.convert_to_tensor(indices, dtype_hint=None if hasattr(indices, "dtype") else tf.int32)
    if given.dtype not in (tf.int32, tf.int64):
        raise TypeError(f"Expected {name} of int32 or int64, got {given.dtype.name}; cast them first.")
    return given
