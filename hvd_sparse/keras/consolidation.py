"""What the exchange keeps for the optimizer is given back to it, so that a model can be saved."""

from __future__ import annotations

import keras
import numpy as np

from hvd_sparse.keras import hooks, momentum


def consolidate(model: keras.Model) -> None:
    """Writes the momentum that the exchange keeps into the slots of a model's optimizer, so that it can be saved.

    A collective: every rank calls it, at the same step. The callbacks of `hvd.callbacks` do so at the end of each
    epoch; a script that saves at other times calls it before. Where the recipe keeps no momentum, or nothing has
    changed since, it does nothing. The slots get the mean over all ranks: of SGD as its velocity at the present
    learning rate, of Adam, AdamW, Adamax and LAMB as their first moment. RMSprop's and LARS's momentum hold their
    scaling of the time, so that theirs begins at zero after loading.

    Args:
        model: compiled with a distributed optimizer.

    Steps and bytes sent per rank: those of a dense all-reduce of all variables that the exchange keeps momentum of.
    """
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    exchange = hooks.exchange_of(optimizer)
    if exchange is None or not exchange.takes_momentum:
        return
    if exchange.step in (0, vars(optimizer).get(momentum.CONSOLIDATED)):
        return
    momenta, factor = exchange.mean_momentum(), momentum.per_slot(optimizer)
    for name, slot in hooks.momentum_slots(optimizer).items():
        if name in momenta:
            slot.assign(momenta[name] / factor if factor else np.zeros_like(momenta[name]))
    vars(optimizer)[momentum.CONSOLIDATED] = exchange.step
