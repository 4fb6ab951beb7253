"""What the exchange keeps for the optimizer is given back to it, so that a model can be saved."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np

from hvd_sparse.compression.momentum import VELOCITY
from hvd_sparse.exchange import sender_side, slots
from hvd_sparse.keras import hooks, momentum, without_slots
from hvd_sparse.transport import topology


def consolidate(model: keras.Model) -> None:
    """Writes what the exchange keeps for a model's optimizer into its slots, so that it can be saved.

    A collective: every rank calls it, at the same step. The callbacks of `hvd.callbacks` do so at the end of each
    epoch; a script that saves at other times calls it before. Where the recipe keeps neither momentum nor slots, or
    nothing has changed since, it does nothing. The slots get the mean over all nodes; where the exchange runs the
    optimizer, they are gathered on rank 0, for files of the .keras format.

    Where only momentum was taken over, SGD's becomes its velocity at the present learning rate, that of Adam, AdamW,
    Adamax and LAMB their first moment. RMSprop's and LARS's momentum hold their scaling of the time, so that theirs
    begins at zero after loading.

    Args:
        model: compiled with a distributed optimizer.

    Steps and bytes sent per rank: for each slot those of a dense all-reduce of all variables that the exchange keeps.
    """
    consolidate_slots(slots.without_loss_scaling(model.optimizer))


def consolidate_slots(optimizer: keras.optimizers.Optimizer) -> None:
    """`consolidate` for a distributed optimizer, or one that is none and stays as it is."""
    exchange = hooks.exchange_of(optimizer)
    if exchange is None or not exchange.takes_over:
        return
    if exchange.step in (0, vars(optimizer).get(momentum.CONSOLIDATED)):
        return
    gathered = sender_side.gather_slots(exchange)
    if exchange.sends_updates:
        stand_in = without_slots.of(optimizer)
        if stand_in is not None and topology.rank() == 0:
            stand_in.gather(optimizer, gathered)
    else:
        _write_momentum(optimizer, gathered.get(VELOCITY, {}))
    vars(optimizer)[momentum.CONSOLIDATED] = exchange.step


def _write_momentum(optimizer: keras.optimizers.Optimizer, momenta: Mapping[str, np.ndarray]) -> None:
    factor = momentum.per_slot(optimizer)
    for name, slot in slots.momenta(optimizer).items():
        if name in momenta:
            slot.assign(momenta[name] / factor if factor else np.zeros_like(momenta[name]))
