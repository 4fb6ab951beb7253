"""The history of `auto`: what it knows of earlier calls of a name."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class Calls(NamedTuple):
    """What is known of earlier calls.

    Attributes:
        calls: the number of calls.
        spread: `universe / kept` of the last call that determined it, or 0.
        choice: the number of the candidate that the last call used.
    """

    calls: float = 0.0
    spread: float = 0.0
    choice: float = 0.0


class CallHistory:
    """What is known of earlier calls, kept in a variable [3] once a graph changes it, too.

    Attributes:
        along: rows up to which a rank's message travels with the greeting of the next call.
    """

    def __init__(self) -> None:
        self.along = -1
        self._own = Calls()  # until there is a variable
        self._shared: tf.Variable | None = None  # costs half a millisecond in an eager call

    def read(self) -> Calls:
        """Returns the history of eager code and graphs together; call it in eager code."""
        return self._own if self._shared is None else Calls(*self._shared.numpy().tolist())

    def write(self, calls: Calls) -> None:
        """Records another call; call it in eager code."""
        if self._shared is None:
            self._own = calls
        else:
            self._shared.assign(calls)

    def variable(self) -> tf.Variable:
        """The three numbers [3] for use in graphs; from now on eager calls read and change it, too."""
        if self._shared is None:
            with tf.init_scope():
                self._shared = tf.Variable(self._own, trainable=False, dtype=tf.float64, name="auto_history")
        return self._shared
