"""Where variables hold a node's own weights: from a tape's entry until its gradient is computed.

Between, before and after tapes, a step sees and writes the weights that all ranks share. A tape within another one
belongs to it: a gradient penalty is computed at the same weights as the loss that contains it.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf

_HOOKED = "_hvd_sparse_hooked"


class Weights(Protocol):
    """An optimizer's weights, which can be lowered to a node's own."""

    def lower(self) -> None:
        """Lowers them, if that was not done already."""

    def land(self) -> list[Any]:
        """Restores them; what follows has to depend on the result."""

    def looked(self) -> None:
        """Notes that gradients were computed at the node's own weights."""


class _Scope:
    """A part of a step in which tapes lower weights.

    Args:
        find: returns the weights; asked at each tape, as the first step may build an optimizer.
    """

    def __init__(self, find: Callable[[], Sequence[Weights]]):
        self.find = find
        self._recording: list[int] = []  # the `id` of tapes that were entered and not left
        self._has_gradient = False  # whether the outermost of them has computed its gradient while it recorded
        self._computing = False

    def enter(self, tape: tf.GradientTape) -> None:
        if self._computing:  # a custom gradient's own tape
            return
        if not self._recording:
            self._has_gradient = False
            for weights in self.find():
                weights.lower()
        self._recording.append(id(tape))
        _recorded[tape] = weakref.WeakSet(self.find())

    def leave(self, tape: tf.GradientTape) -> None:
        if id(tape) in self._recording:
            self._recording.remove(id(tape))
            if not self._recording and self._has_gradient:
                self._land()

    def compute(self, tape: tf.GradientTape, gradient: Callable[[], Any]) -> Any:
        if self._computing:
            return gradient()
        self._computing = True
        try:
            found = gradient()
        finally:
            self._computing = False
        if self._recording:
            self._has_gradient |= self._recording[0] == id(tape)
            return found
        return after(self._land(), found)

    def _land(self) -> list[Any]:
        return [operation for weights in self.find() for operation in weights.land()]


_scope: contextvars.ContextVar[_Scope | None] = contextvars.ContextVar("scope", default=None)
_one_program: contextvars.ContextVar[bool] = contextvars.ContextVar("one_program", default=False)
_recorded: weakref.WeakKeyDictionary[Any, weakref.WeakSet] = weakref.WeakKeyDictionary()  # by tape


@contextlib.contextmanager
def lowering(find: Callable[[], Sequence[Weights]]) -> Iterator[None]:
    """Context in which tapes lower these weights, besides those of the contexts around it."""
    around = _scope.get()

    def both() -> list[Weights]:
        outer = [] if around is None else around.find()
        return list(dict.fromkeys([*outer, *find()]))

    token = _scope.set(_Scope(both))
    try:
        yield
    finally:
        _scope.reset(token)


@contextlib.contextmanager
def one_program() -> Iterator[None]:
    """Context for a function that XLA compiles: it writes all variables at its end, or none if it fails."""
    token = _one_program.set(True)
    try:
        yield
    finally:
        _one_program.reset(token)


def in_one_program() -> bool:
    """Whether a function is traced in the context `one_program`."""
    return _one_program.get() and not tf.executing_eagerly()


def after(operations: Sequence[Any], structure: Any) -> Any:
    """The tensors of a structure, which may contain None, once operations of a graph have run."""
    if not operations:
        return structure
    with tf.control_dependencies(operations):
        return tf.nest.map_structure(
            lambda each: None if each is None else tf.identity(each), structure, expand_composites=True
        )


def install() -> None:
    """Installs the hooks in `tf.GradientTape`; a second call does nothing."""
    tape = tf.GradientTape
    if hasattr(tape.gradient, _HOOKED):
        return
    tape.__enter__ = _hooked_enter(tape.__enter__)
    tape.__exit__ = _hooked_exit(tape.__exit__)
    for name in ("gradient", "jacobian", "batch_jacobian"):
        setattr(tape, name, _hooked_gradient(getattr(tape, name)))


def _hooked_enter(original: Any) -> Any:
    @functools.wraps(original)
    def enter(self):
        scope = _scope.get()
        if scope is not None:
            scope.enter(self)
        return original(self)

    return enter


def _hooked_exit(original: Any) -> Any:
    @functools.wraps(original)
    def leave(self, *exception):
        result = original(self, *exception)
        scope = _scope.get()
        if scope is not None:
            scope.leave(self)
        return result

    return leave


def _hooked_gradient(original: Any) -> Any:
    @tf.autograph.experimental.do_not_convert
    @functools.wraps(original)
    def gradient(self, *args, **options):
        for weights in _recorded.get(self, ()) if _recorded else ():
            weights.looked()
        scope = _scope.get()
        if scope is None:
            return original(self, *args, **options)
        return scope.compute(self, functools.partial(original, self, *args, **options))

    setattr(gradient, _HOOKED, True)
    return gradient
