"""Compares the ranks' learning rates: with different ones their weights would drift apart."""

from __future__ import annotations

import warnings

import keras

from hvd_sparse.transport import first_rank
from hvd_sparse.transport.communicator import Communicator

ERROR, WARNING = "error", "warning"  # what may follow if rates differ


def check_reaction(reaction: str) -> str:
    """Returns what is to follow if rates differ; raises ValueError if it is neither "error" nor "warning"."""
    if reaction not in (ERROR, WARNING):
        raise ValueError(f"Expected different_rates to be {ERROR!r} or {WARNING!r}, got {reaction!r}.")
    return reaction


def learning_rate(optimizer: keras.optimizers.Optimizer) -> float:
    """The optimizer's current learning rate."""
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))


def compare(world: Communicator, rate: float, reaction: str) -> None:
    """Compares the learning rates of ranks that exchange with each other; a collective.

    Args:
        world: these ranks.
        rate: this rank's.
        reaction: `ERROR` or `WARNING`; the first rank gives the warning.

    Raises:
        ValueError: on every rank, if they differ and the reaction is an error.
    """
    rates = world.gather_descriptions(rate, "rates.compare")
    if all(rate == rates[0] for rate in rates):
        return
    told = ", ".join(f"rank {rank}: {rate:g}" for rank, rate in zip(world.ranks, rates, strict=True))
    text = (
        f"The ranks have different learning rates ({told}), so their weights drift apart: list "
        "hvd.callbacks.MetricAverageCallback() before callbacks that set the rate by a metric, such as "
        "ReduceLROnPlateau, and set every other rate alike on all ranks."
    )
    if reaction == ERROR:
        raise ValueError(text)
    if world.rank == 0:
        warnings.warn(text, stacklevel=first_rank.users_level())
