"""What an exchange keeps instead of the optimizer, by the variables of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.exchange import state
from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.exchange.plan import unique_names


def taking_over(exchange: GradientExchange, variables: Sequence[Any]) -> list[bool]:
    """For each variable, whether the exchange keeps its momentum or slots; never for local variables or rows."""
    return [name in exchange.planned.taking_over for name in unique_names(variables)]


def gather_slots(exchange: GradientExchange) -> dict[str, dict[str, np.ndarray]]:
    """The mean over nodes of each slot that was taken over, by slot name and variable name; a collective."""
    return state.slots(exchange.planned)


def unsent(exchange: GradientExchange, variables: Sequence[Any]) -> dict[int, tf.Tensor]:
    """What this rank's node has not sent yet, by the `id` of the variable; a collective within the node."""
    found = exchange.planned.unsent()
    named = zip(unique_names(variables), variables, strict=True)
    return {id(variable): found[name] for name, variable in named if name in found}
