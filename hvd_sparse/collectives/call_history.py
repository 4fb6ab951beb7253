"""The history of `auto`: what it knows of former calls of a name."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class Calls(NamedTuple):
    """What is known of former calls.

    Attributes:
        calls: how many there were.
        spread: `universe / kept` of the last one that told, or 0.
        choice: what the last one took.
    """

    calls: float = 0.0
    spread: float = 0.0
    choice: float = 0.0


class CallHistory:
    """What is known of former calls, in a variable [3] where a graph changes it, too.

    Attributes:
        along: rows up to which a rank's message goes along with the next call's greeting.
    """

    def __init__(self) -> None:
        self.along = -1
        self._own = Calls()  # until there is a variable
        self._shared: tf.Variable | None = None  # half a millisecond of an eager call

    def read(self) -> Calls:
        """Of eager code and graphs together; in eager code."""
        return self._own if self._shared is None else Calls(*self._shared.numpy().tolist())

    def write(self, calls: Calls) -> None:
        """Takes in another call; in eager code."""
        if self._shared is None:
            self._own = calls
        else:
            self._shared.assign(calls)

    def variable(self) -> tf.Variable:
        """For graphs: the three numbers [3], which eager calls read and change from now on."""
        if self._shared is None:
            with tf.init_scope():
                self._shared = tf.Variable(self._own, trainable=False, dtype=tf.float64, name="auto_history")
        return self._shared
