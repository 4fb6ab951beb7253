"""What a server has last sent of its parameters, and what it sends next (gradient dropping of pulls)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse.compression.base import Compressor
from hvd_sparse.servers.messages import Entries
from hvd_sparse.spec import Spec


class _Copy(NamedTuple):
    """What a client has once it has taken all that was sent.

    Attributes:
        negated: [size] float32, minus it: added to the parameters in the compressor's own pass over memory.
        state: of the compressor.
    """

    negated: tf.Variable
    state: tf.Module | None


class Copies:
    """A copy of a shard for each client: what it was last sent, place by place.

    A pull is chosen by the difference between the parameters and this copy (Aji and Heafield 2017, section 3: "last
    copy sent"). It carries the new values themselves: as many bytes as the differences, but exact, and harmless when
    it is taken twice. What is not chosen remains in the difference, so that no residual is needed.
    """

    def __init__(self, pull: Compressor | None, spec: Spec):
        """Takes what chooses, without feedback, or None for all of the shard; and the shard."""
        self._pull, self._spec = pull, spec
        self._copies: dict[int, _Copy] = {}

    def begin(self, client: int, parameters: tf.Tensor) -> Entries:
        """The whole shard [size] float32, for a client that has nothing, or what it has is not known."""
        state = None if self._pull is None else self._pull.create(self._spec)
        self._copies[client] = _Copy(tf.Variable(-parameters, trainable=False, name="negated_copy"), state)
        return Entries(parameters.numpy())

    def next(self, client: int, parameters: tf.Tensor) -> Entries:
        """What is to be sent to a client that has taken all that it was sent before."""
        held = self._copies[client]
        if self._pull is None:
            held.negated.assign(-parameters)
            return Entries(parameters.numpy())
        selection = self._pull.compress(tf.expand_dims(parameters, 0), held.state, held.negated)
        for variable, value in selection.updates:
            variable.assign(value)
        indices = selection.slices.indices
        values = tf.gather(parameters, indices)
        held.negated.scatter_update(tf.IndexedSlices(-values, indices))
        return Entries(values.numpy(), indices.numpy())

    def forget(self, client: int) -> None:
        """Lets go of a client's copy."""
        self._copies.pop(client, None)

    def of(self, client: int) -> np.ndarray:
        """What a client was last sent, [size] float32."""
        return -self._copies[client].negated.numpy()


class SharedCopy(Copies):
    """One copy for all clients, which get the same values at the same places: for servers that are synchronous."""

    def __init__(self, pull: Compressor | None, spec: Spec):
        super().__init__(pull, spec)
        self._last: Entries | None = None

    def begin(self, client: int, parameters: tf.Tensor) -> Entries:
        if not self._copies:
            super().begin(0, parameters)
        return Entries(super().of(0))

    def choose(self, parameters: tf.Tensor) -> None:
        """Chooses what `next` gives to all clients."""
        self._last = super().next(0, parameters)

    def next(self, client: int, parameters: tf.Tensor) -> Entries:
        assert self._last is not None
        return self._last

    def forget(self, client: int) -> None:
        pass

    def of(self, client: int) -> np.ndarray:
        return super().of(0)
