"""What `tf.train.Checkpoint` saves of an optimizer whose momentum or slots the exchange keeps.

TensorFlow saves the variables that an optimizer tracks, and those of the exchange are not among them. So such an
optimizer tracks an object whose state is what is missing. It refuses to be saved while the slots are out of date, as
`save_own_variables` does, and to be restored into an exchange that has begun, which would go on with slots of its own.
A SavedModel, which only infers, does without it.
"""

from __future__ import annotations

import io
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.keras import momentum
from hvd_sparse.optimizers import without_slots

ATTRIBUTE = "hvd_sparse_slots"  # also in checkpoints


class Slots(tf.train.experimental.PythonState):
    """The slots that the exchange keeps for an optimizer, as a NumPy archive (.npz) of all its variables.

    Args:
        optimizer: a distributed optimizer, which is not kept alive.
        exchange: its exchange, which takes over momentum or the whole step.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, exchange: GradientExchange):
        super().__init__()
        self._optimizer = weakref.ref(optimizer)
        self._exchange = weakref.ref(exchange)
        self._restored = b""

    def serialize(self) -> bytes:
        """The slots; b"" if the optimizer has them all in variables of its own.

        Raises:
            RuntimeError: if they were not gathered since the last step, or on another rank.
        """
        optimizer, exchange = self._optimizer(), self._exchange()
        if optimizer is None or exchange is None:
            return b""
        if without_slots.of(optimizer) is None:
            momentum.require_consolidated(optimizer, exchange)
            return self._restored
        held: dict[str, np.ndarray] = {}
        optimizer.save_own_variables(held)
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **held)
        return file.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """Gives the slots to the exchange when it begins; RuntimeError if it has begun."""
        optimizer, exchange = self._optimizer(), self._exchange()
        if optimizer is None or exchange is None:
            return
        if exchange.step > 0:
            raise RuntimeError(
                f"The exchange keeps the momentum of {type(optimizer).__name__}, and would continue with what it has "
                "now: restore the checkpoint before the first step, into a new model and a new optimizer. Weights may "
                "be only partly restored."
            )
        self._restored = string_value
        self.hand_over()

    def hand_over(self) -> None:
        """Gives the optimizer the slots that were restored before it was built."""
        optimizer = self._optimizer()
        if optimizer is None or not self._restored or without_slots.of(optimizer) is None:
            return
        with np.load(io.BytesIO(self._restored), allow_pickle=False) as held:
            optimizer.load_own_variables(dict(held))
        self._restored = b""


def track(optimizer: keras.optimizers.Optimizer, exchange: GradientExchange) -> None:
    """Makes checkpoints of TensorFlow contain what the exchange keeps for an optimizer."""
    if exchange.takes_over:
        setattr(optimizer, ATTRIBUTE, Slots(optimizer, exchange))


def built(optimizer: keras.optimizers.Optimizer) -> None:
    """Gives an optimizer that has just been built the slots that were restored before."""
    tracked = getattr(optimizer, ATTRIBUTE, None)
    if tracked is not None:
        tracked.hand_over()


def wanted(children: dict[str, Any], save_type: str) -> dict[str, Any]:
    """What an optimizer tracks, without the slots if a SavedModel is to be written."""
    return {name: child for name, child in children.items() if name != ATTRIBUTE or save_type == "checkpoint"}
