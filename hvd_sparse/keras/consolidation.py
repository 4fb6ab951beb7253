"""Returns to the optimizer what the exchange keeps for it, so that a model can be saved."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.compression.momentum import VELOCITY
from hvd_sparse.exchange import sender_side
from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.keras import momentum
from hvd_sparse.keras.exchanging import exchange_of
from hvd_sparse.keras.tracked import optimizers_of
from hvd_sparse.optimizers import slots, without_slots
from hvd_sparse.spec import Gathered
from hvd_sparse.transport import topology


def consolidate(model: keras.Model | tf.train.Checkpoint) -> None:
    """Writes what exchanges keep for a model's optimizers into the optimizers' slots, so that these can be saved.

    It is a collective that every rank calls at the same step. The callbacks of `hvd.callbacks` call it at the end of
    each epoch; if you save at other times, call it before. It does nothing if the recipe keeps neither momentum nor
    slots, or nothing has changed since the last call. The slots get the mean over all nodes; if the exchange runs the
    optimizer, they are gathered on rank 0, for files in .keras format.

    If only momentum was taken over, it becomes SGD's velocity at the current learning rate, or the first moment of
    Adam, AdamW, Adamax and LAMB. The momentum of RMSprop and LARS contains the scaling of earlier steps, so theirs
    begins at zero after loading.

    Args:
        model: a model with distributed optimizers: the one that it was compiled with, and all others that it or its
            layers have as attributes, also in lists and dicts; or a `tf.train.Checkpoint` that tracks optimizers.

    Steps and bytes sent per rank: for each slot, those of a dense all-reduce of all variables that the exchange keeps.
    """
    for optimizer in optimizers_of(model).values():
        consolidate_slots(slots.without_loss_scaling(optimizer))


def consolidate_slots(optimizer: keras.optimizers.Optimizer) -> None:
    """`consolidate` for an optimizer; one that is not distributed stays as it is."""
    exchange = exchange_of(optimizer)
    if exchange is None or not exchange.takes_over:
        return
    if exchange.step in (0, vars(optimizer).get(momentum.CONSOLIDATED)):
        return
    give_back(optimizer, exchange, sender_side.gather_slots(exchange), here=topology.rank() == 0)
    vars(optimizer)[momentum.CONSOLIDATED] = exchange.step


def give_back(
    optimizer: keras.optimizers.Optimizer, exchange: GradientExchange, gathered: Gathered, here: bool
) -> None:
    """Writes what an exchange has kept into the optimizer's slots, or beside them if it has none.

    Args:
        optimizer: a distributed optimizer.
        exchange: its exchange.
        gathered: the mean over all nodes of each slot, by slot name and variable name.
        here: whether this is the rank that keeps the slots of an optimizer without slots.
    """
    if not exchange.sends_updates:
        _write_momentum(optimizer, gathered.get(VELOCITY, {}))
        return
    stand_in = without_slots.of(optimizer)
    if stand_in is not None and here:
        stand_in.gather(optimizer, gathered)


def _write_momentum(optimizer: keras.optimizers.Optimizer, momenta: Mapping[str, np.ndarray]) -> None:
    factor = momentum.per_slot(optimizer)
    with momentum.own_writes():
        for name, slot in slots.momenta(optimizer).items():
            if name in momenta:
                slot.assign(momenta[name] / factor if factor else np.zeros_like(momenta[name]))
