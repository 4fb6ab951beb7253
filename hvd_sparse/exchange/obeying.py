"""Drops what belongs to other weights, after weights or slots were written between two steps, as by `load_weights`.

A rank that was written to announces it as a NaN is: it takes part in the next exchange with gradients that are not
finite, so that all ranks notice, whatever they are about to do, and steps without such a write cost nothing. If every
rank was written to, all drop what waits to be sent, take over the slots that were written, and then exchange their
gradients. If only some were, it is an error on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from hvd_sparse.aggregators.transaction import Exchange, Flags, gather_flags, refuse
from hvd_sparse.exchange import ending
from hvd_sparse.optimizers.written import Watch
from hvd_sparse.transport import first_rank
from hvd_sparse.transport.communicator import Communicator

_TOLD = (
    "Weights were written since the last step (load_weights, set_weights, restore_best_weights, a broadcast): what was "
    "waiting to be sent belongs to other weights, and all ranks have dropped it."
)


class Obeying:
    """Drops what an exchange keeps once its variables were written on all ranks.

    Args:
        variables: those of the exchange.
        told: called at each write.
        world: the ranks that exchange.
        name: begins the names of collectives; the same on every rank.
        exchanges: exchanges gradients that are not finite, without committing anything.
        drop: drops what waits, and takes over slots: whether any rank's were written, and of which variables this
            rank's were; a collective.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        told: Callable[[], None],
        world: Communicator,
        name: str,
        exchanges: Callable[[], list[Exchange]],
        drop: Callable[[bool, Collection[str]], None],
    ):
        self.watch = Watch(variables, told)
        self._world, self._name = world, name
        self._exchanges, self._drop = exchanges, drop
        self._in_graph: Any = None
        self._told = False

    def before_step(self) -> list[tf.Operation]:
        """What an exchange has to wait for."""
        if tf.executing_eagerly():
            if self.watch.weights.numpy():
                self._end(self._announce(self._slots()))
            return []

        def announce() -> tf.Tensor:
            with tf.control_dependencies([tf.py_function(self._announce_in_graph, [], [])]):
                return tf.constant(True)

        return [tf.cond(self.watch.weights, announce, lambda: tf.constant(False))]

    def settle(self) -> None:
        """Drops what belongs to other weights before it is saved; a collective outside of steps."""
        written = bool(self.watch.weights.numpy())
        flags = gather_flags(self._world, f"{self._name}.settle", Flags(written, self._slots()))
        if flags[0] > 0:
            self._end(flags)

    def _announce_in_graph(self) -> None:
        """Announces by the operations of a graph, as the other ranks are about to exchange by these."""
        if self._in_graph is None:
            of_flag = [tf.TensorSpec([], tf.bool)]
            traced = tf.function(self._announce, of_flag, autograph=False, jit_compile=False)
            self._in_graph = traced.get_concrete_function()
        self._end(self._in_graph(self._slots()))

    def _slots(self) -> tf.Tensor:
        return tf.constant(bool(self.watch.slots))

    def _announce(self, slots: tf.Tensor) -> tf.Tensor:
        known = ending.ask(self._exchanges(), self._world, f"{self._name}.commit")
        written = ending.after(tf.constant(1), known) > 0
        return gather_flags(self._world, f"{self._name}.commit", Flags(written, slots))

    def _end(self, flags: tf.Tensor) -> None:
        refuse(flags)
        self._drop(bool(flags[2] > 0), self.watch.slots)
        self.watch.take()
        if not self._told:
            first_rank.warn(_TOLD)
        self._told = True
