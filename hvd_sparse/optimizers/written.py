"""Writes to weights and slots by Keras's public ways, of which whoever keeps something for these variables is told.

An exchange keeps residuals, and may keep an optimizer's slots. Once a user has set weights back, what waits to be sent
belongs to other weights; and slots from a file have to reach the exchange.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from hvd_sparse._living import Living
from hvd_sparse.optimizers.variables import resource

_watches: Living[Watch] = Living()


class Watch:
    """Remembers whether variables, or the slots that belong to them, were written since `take` was last called.

    Attributes:
        weights: whether either was written, [] bool, for graphs.
        slots: the names of the variables whose slots were written.
    """

    def __init__(self, variables: Iterable[Any], told: Callable[[], None]):
        """Watches variables, without keeping them alive; `told` is called at each write, on this rank alone."""
        self._variables = [weakref.ref(resource(variable)) for variable in variables]
        self._told = told
        self.weights = tf.Variable(False, trainable=False, name="weights_were_written")
        self.slots: set[str] = set()
        _watches.add(self)

    def note(self, slots: Iterable[str] = ()) -> None:
        """Notes a write of weights, and of the slots of variables of these names."""
        self.weights.assign(True)
        self.slots.update(slots)
        self._told()

    def take(self) -> None:
        """Notes that what was written has been taken over."""
        self.weights.assign(False)
        self.slots = set()

    def concerns(self, variables: Iterable[Any]) -> bool:
        """Whether any of these variables is watched."""
        given = {id(resource(variable)) for variable in variables}
        return any(id(reference()) in given for reference in self._variables if reference() is not None)


def note(variables: Iterable[Any]) -> None:
    """Tells all who watch one of these variables, of Keras or TensorFlow, that it was written."""
    for watch in _concerned(variables):
        watch.note()


def noted(variables: Iterable[Any]) -> bool:
    """Whether one of these variables was written, and this has not been taken over yet."""
    return any(watch.weights.numpy() for watch in _concerned(variables))


def _concerned(variables: Iterable[Any]) -> list[Watch]:
    given = list(variables)
    return [watch for watch in _watches if watch.concerns(given)]
