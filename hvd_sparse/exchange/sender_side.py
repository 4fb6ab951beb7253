"""What an exchange keeps instead of the optimizer, by the variables of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.exchange import state
from hvd_sparse.exchange.gradients import GradientExchange


def taking_over(exchange: GradientExchange, variables: Sequence[Any], names: Mapping[int, str]) -> list[bool]:
    """For each variable, whether the exchange keeps its momentum or slots; never for local variables or rows.

    Args:
        exchange: of an optimizer.
        variables: of the optimizer.
        names: of all the optimizer's variables, by their `id`.
    """
    return [names[id(each)] in exchange.planned.taking_over for each in variables]


def gather_slots(exchange: GradientExchange) -> dict[str, dict[str, np.ndarray]]:
    """The mean over nodes of each slot that was taken over, by slot name and variable name; a collective."""
    exchange.settle()
    return state.slots(exchange.planned)


def unsent(exchange: GradientExchange, names: Mapping[int, str]) -> dict[int, tf.Tensor]:
    """What this rank's node has not sent yet, by the `id` of the variable; a collective within the node.

    Args:
        exchange: of an optimizer.
        names: as for `taking_over`.
    """
    found = exchange.planned.unsent()
    return {number: found[name] for number, name in names.items() if name in found}
