"""What a server has last sent of its parameters, and what it sends next (gradient dropping for pulls)."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.compression.base import Coded, Compressor, Selection
from hvd_sparse.compression.selectors import Quantized
from hvd_sparse.servers.messages import Codes, Entries
from hvd_sparse.servers.pages import use_large_pages
from hvd_sparse.spec import Spec


class _LastSent(Protocol):
    """The copy that a client has once it has received everything that was sent."""

    def next(self, parameters: tf.Tensor) -> Entries:
        """What to send next, given the parameters [size] float32."""

    def values(self) -> np.ndarray:
        """The copy, [size] float32."""


class _Whole:
    """The copy of a client that is sent the whole shard each time."""

    def __init__(self, parameters: tf.Tensor):
        self._values = parameters.numpy()

    def next(self, parameters: tf.Tensor) -> Entries:
        self._values = parameters.numpy()
        return Entries(self._values)

    def values(self) -> np.ndarray:
        return self._values


class _Dropped:
    """The copy of a client that is sent what has changed most."""

    def __init__(self, parameters: tf.Tensor, pull: Compressor, spec: Spec):
        if isinstance(pull, Quantized):
            pull = dataclasses.replace(pull, keeps_error=False)  # rounding errors are in the next difference
        self._pull, self._state = pull, pull.create(spec)
        # Minus the copy: the compressor adds it to the parameters in its own pass over memory.
        self._negated = tf.Variable(-parameters, trainable=False, name="negated_copy")
        use_large_pages([self._negated])

    def next(self, parameters: tf.Tensor) -> Entries:
        selection = self._pull.compress(tf.expand_dims(parameters, 0), self._state, self._negated)
        for variable, value in selection.updates:
            variable.assign(value)
        if selection.coded is not None:
            return self._coded(selection, selection.coded, parameters)
        places = selection.slices.indices
        values = ops.library().hvd_servers_send(negated=self._negated.handle, parameters=parameters, places=places)
        return Entries(values.numpy(), places.numpy())

    def values(self) -> np.ndarray:
        return -self._negated.numpy()

    def _coded(self, selection: Selection, coded: Coded, parameters: tf.Tensor) -> Entries:
        """Differences; the client adds to its copy exactly what is added here, in the same way."""
        if selection.culprit != 0:  # there is no code for a value that is not finite
            self._negated.assign(-parameters)
            return Entries(parameters.numpy())
        places, changes = selection.slices.indices, selection.slices.values.numpy()
        # With NumPy, as on the client: TensorFlow may flush denormal numbers to zero.
        copied = -tf.gather(self._negated, places).numpy()
        ops.library().hvd_servers_put(
            variables=[self._negated.handle], values=-(copied + changes), places=places, everywhere=False
        )
        return Entries(changes, places.numpy(), Codes(coded.codes.numpy(), coded.scales.numpy()))


class Copies:
    """A copy of a shard for each client: what it was last sent, place by place.

    A pull selects by the difference between the parameters and this copy (Aji and Heafield 2017, section 3: "last copy
    sent"). It carries the new values: as many bytes as the differences, but exact, and harmless if received twice.
    Values in few bits are sent as differences, as these are small; server and client add the same numbers to their
    copies. What is not selected, or is rounded away, remains in the difference, so no residual is needed.
    """

    def __init__(self, pull: Compressor | None, spec: Spec):
        """Takes the shard and its compressor, without error feedback; None sends the whole shard."""
        self._pull, self._spec = pull, spec
        self._copies: dict[int, _LastSent] = {}

    def begin(self, client: int, parameters: tf.Tensor) -> Entries:
        """The whole shard [size] float32, for a client that has nothing, or nothing that is known here."""
        pull = self._pull if self._spec.size else None
        self._copies[client] = _Whole(parameters) if pull is None else _Dropped(parameters, pull, self._spec)
        return Entries(parameters.numpy())

    def next(self, client: int, parameters: tf.Tensor) -> Entries:
        """What to send next to a client that has received everything before."""
        return self._copies[client].next(parameters)

    def forget(self, client: int) -> None:
        """Drops a client's copy."""
        self._copies.pop(client, None)

    def of(self, client: int) -> np.ndarray:
        """What a client was last sent, [size] float32."""
        return self._copies[client].values()


class SharedCopy(Copies):
    """One copy for all clients, which get the same values at the same places: for synchronous servers.

    A client that was not waited for has missed some of them, and gets the whole shard.
    """

    def __init__(self, pull: Compressor | None, spec: Spec):
        super().__init__(pull, spec)
        self._last: Entries | None = None
        self._chosen = 0  # number of selections made
        self._given: dict[int, int] = {}  # the last selection that each client was sent

    def begin(self, client: int, parameters: tf.Tensor) -> Entries:
        if not self._copies:
            super().begin(0, parameters)
        self._given[client] = self._chosen
        return Entries(super().of(0))

    def choose(self, parameters: tf.Tensor) -> None:
        """Selects what `next` sends to all clients."""
        self._last = super().next(0, parameters)
        self._chosen += 1

    def next(self, client: int, parameters: tf.Tensor) -> Entries:
        assert self._last is not None
        has_missed = self._given[client] != self._chosen - 1
        self._given[client] = self._chosen
        return Entries(super().of(0)) if has_missed else self._last

    def forget(self, client: int) -> None:
        pass

    def of(self, client: int) -> np.ndarray:
        return super().of(0)
