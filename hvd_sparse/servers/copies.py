"""What a server has last sent of its parameters, and what it sends next (gradient dropping of pulls)."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.compression.base import Coded, Compressor, Selection
from hvd_sparse.compression.selectors import Quantized
from hvd_sparse.servers.messages import Codes, Entries
from hvd_sparse.spec import Spec


class _LastSent(Protocol):
    """What a client has once it has taken all that was sent."""

    def next(self, parameters: tf.Tensor) -> Entries:
        """What it is sent next, of parameters [size] float32."""

    def values(self) -> np.ndarray:
        """[size] float32."""


class _Whole:
    """Of a client that is sent the whole shard each time."""

    def __init__(self, parameters: tf.Tensor):
        self._values = parameters.numpy()

    def next(self, parameters: tf.Tensor) -> Entries:
        self._values = parameters.numpy()
        return Entries(self._values)

    def values(self) -> np.ndarray:
        return self._values


class _Dropped:
    """Of a client that is sent what has changed most."""

    def __init__(self, parameters: tf.Tensor, pull: Compressor, spec: Spec):
        if isinstance(pull, Quantized):
            pull = dataclasses.replace(pull, keeps_error=False)  # what rounding takes away is in the next difference
        self._pull, self._state = pull, pull.create(spec)
        # Minus the copy: it is added to the parameters in the compressor's own pass over memory.
        self._negated = tf.Variable(-parameters, trainable=False, name="negated_copy")

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
        """Differences; the client adds to its copy what is added here, in the same way."""
        if selection.culprit != 0:  # nothing stands for what is not finite
            self._negated.assign(-parameters)
            return Entries(parameters.numpy())
        places, changes = selection.slices.indices, selection.slices.values.numpy()
        # By NumPy, as the client: TensorFlow may take denormal numbers for zeros.
        copied = -tf.gather(self._negated, places).numpy()
        ops.library().hvd_servers_put(
            variables=[self._negated.handle], values=-(copied + changes), places=places, everywhere=False
        )
        return Entries(changes, places.numpy(), Codes(coded.codes.numpy(), coded.scales.numpy()))


class Copies:
    """A copy of a shard for each client: what it was last sent, place by place.

    A pull is chosen by the difference between the parameters and this copy (Aji and Heafield 2017, section 3: "last
    copy sent"). It carries the new values themselves: as many bytes as the differences, but exact, and harmless when
    it is taken twice. Values in few bits are differences, as they are small; server and client add the same numbers to
    their copies. What is not chosen, or rounded away, remains in the difference, so that no residual is needed.
    """

    def __init__(self, pull: Compressor | None, spec: Spec):
        """Takes what chooses, without feedback, or None for all of the shard; and the shard."""
        self._pull, self._spec = pull, spec
        self._copies: dict[int, _LastSent] = {}

    def begin(self, client: int, parameters: tf.Tensor) -> Entries:
        """The whole shard [size] float32, for a client that has nothing, or what it has is not known."""
        pull = self._pull if self._spec.size else None
        self._copies[client] = _Whole(parameters) if pull is None else _Dropped(parameters, pull, self._spec)
        return Entries(parameters.numpy())

    def next(self, client: int, parameters: tf.Tensor) -> Entries:
        """What is to be sent to a client that has taken all that it was sent before."""
        return self._copies[client].next(parameters)

    def forget(self, client: int) -> None:
        """Lets go of a client's copy."""
        self._copies.pop(client, None)

    def of(self, client: int) -> np.ndarray:
        """What a client was last sent, [size] float32."""
        return self._copies[client].values()


class SharedCopy(Copies):
    """One copy for all clients, which get the same values at the same places: for servers that are synchronous.

    Who was not waited for, and so has missed some, gets all of it.
    """

    def __init__(self, pull: Compressor | None, spec: Spec):
        super().__init__(pull, spec)
        self._last: Entries | None = None
        self._chosen = 0  # how often
        self._given: dict[int, int] = {}  # the last choice that each client was given

    def begin(self, client: int, parameters: tf.Tensor) -> Entries:
        if not self._copies:
            super().begin(0, parameters)
        self._given[client] = self._chosen
        return Entries(super().of(0))

    def choose(self, parameters: tf.Tensor) -> None:
        """Chooses what `next` gives to all clients."""
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
