"""Notices that a step writes to variables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from hvd_sparse.optimizers.variables import resource

_SCATTERS = ("add", "div", "max", "min", "mul", "sub", "update", "nd_add", "nd_max", "nd_min", "nd_sub", "nd_update")
_WRITERS = ("assign", "assign_add", "assign_sub", "batch_scatter_update", *(f"scatter_{name}" for name in _SCATTERS))


class Watched:
    """A variable whose writes are noticed between `begin` and `end`; Keras's variables write through TensorFlow's.

    Args:
        variable: a Keras or TensorFlow variable.
        told: called with the variable before each write.
    """

    def __init__(self, variable: Any, told: Callable[[Any], None]):
        self._attributes = vars(resource(variable))
        self._writers = {
            name: _telling(getattr(resource(variable), name), functools.partial(told, variable))
            for name in _WRITERS
            if hasattr(resource(variable), name)
        }

    def begin(self) -> None:
        """From now on, writes are noticed."""
        self._attributes.update(self._writers)

    def end(self) -> None:
        """From now on, they are not."""
        for name in self._writers:
            self._attributes.pop(name, None)


def _telling(write: Callable[..., Any], told: Callable[[], None]) -> Callable[..., Any]:
    @tf.autograph.experimental.do_not_convert
    @functools.wraps(write)
    def telling(*args, **options):
        told()
        return write(*args, **options)

    return telling


def uses(variable: Any) -> dict[str, str]:
    """The operations of the graph that is being built that take a variable: their types by their names."""
    graph, handle = tf.compat.v1.get_default_graph(), resource(variable).handle
    inside = graph.capture(handle) if hasattr(graph, "capture") else handle
    return {operation.name: operation.type for operation in inside.consumers()}


def writes_among(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether a use that is in `after` and not in `before` writes the variable, as `variable[0].assign` does."""
    return any("Assign" in kind or "Scatter" in kind for name, kind in after.items() if name not in before)
