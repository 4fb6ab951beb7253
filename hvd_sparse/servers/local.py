"""What runs on a client before the selection: momentum, or the whole optimizer, with the client's own slots.

If a push is `LocalUpdates`, the client sends how far its optimizer would move the weights. Servers subtract what
arrives; they do not run their optimizer, except for decoupled weight decay.
"""

from __future__ import annotations

import weakref

import keras
import tensorflow as tf

from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.momentum import MomentumCorrection
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.optimizers import kinds, shard_slots
from hvd_sparse.optimizers.copies import subtraction as subtraction
from hvd_sparse.spec import LocalOptimizer, Spec


def sends_updates(push: Compressor | None) -> bool:
    """Whether clients push the amounts by which weights are to be lowered."""
    return isinstance(push, LocalUpdates)


def looks_ahead(push: Compressor | None) -> bool:
    """Whether clients compute gradients at their copy of the parameters minus the updates that they have not pushed."""
    return isinstance(push, LocalUpdates) and push.ahead


def check(optimizer: keras.optimizers.Optimizer, push: Compressor | None) -> None:
    """Raises ValueError if clients cannot run what a push asks for before the selection."""
    if isinstance(push, MomentumCorrection):
        _check_momentum(optimizer, push)
    if not isinstance(push, LocalUpdates):
        return
    if push.gathers:
        raise ValueError("Clients push in every step: leave gathers=True out of LocalUpdates.")
    if push.gain_ratio:
        raise ValueError(
            "Clients do not average their gradients, so there is no gain: leave gain_ratio=True out of LocalUpdates."
        )
    if kinds.step_of(optimizer) is not kinds.Step.ELEMENT:
        raise ValueError(
            f"A client cannot run {type(optimizer).__name__} on the parts of its gradient: use one of "
            f"{', '.join(kinds.names(kinds.Step.ELEMENT))} with its original step, or push gradients, with "
            "ErrorFeedback instead of LocalUpdates."
        )


def _check_momentum(optimizer: keras.optimizers.Optimizer, push: MomentumCorrection) -> None:
    if push.momentum is None:
        raise ValueError(
            "Servers do not pass momentum to their clients: set it, MomentumCorrection(compressor, momentum=0.9), "
            "and pass the servers an optimizer without momentum."
        )
    names = [name for name in ("momentum", "beta_1") if getattr(optimizer, name, 0.0)]
    if push.momentum and names:
        raise ValueError(
            f"Clients have a momentum of {push.momentum:g}, and the servers' {type(optimizer).__name__} has "
            f"{names[0]}={getattr(optimizer, names[0]):g}: set that to 0, or leave out MomentumCorrection."
        )


def optimizer_of(optimizer: keras.optimizers.Optimizer) -> LocalOptimizer:
    """An optimizer as a client runs it, for `Spec.optimizer`; only weakly referenced.

    Args:
        optimizer: one that `check` accepts.
    """
    reference = weakref.ref(optimizer)

    def create(spec: Spec) -> ClientSlots:
        alive = reference()
        assert alive is not None, "it makes what it creates"
        return ClientSlots(spec, alive)

    return LocalOptimizer(create)


class ClientSlots(shard_slots.TwinSlots):
    """A client's slots for a shard, and the number of gradients they have taken in.

    The optimizer's own `iterations` counts the pushes of all ranks; Adam's bias correction uses the client's count.
    """

    def __init__(self, spec: Spec, optimizer: keras.optimizers.Optimizer):
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"{spec.name}_steps")
        super().__init__(spec, optimizer, self.steps)

    def update(self, gradient, ahead):
        lowered, written = super().update(gradient, ahead)
        return lowered, [*written, (self.steps, self.steps + 1)]
