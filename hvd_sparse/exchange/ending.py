"""What follows if one rank takes no more steps while another is about to exchange: an error on both.

A rank that takes no more steps announces it as a NaN is: it takes part in the next exchange with gradients that are not
finite, so that all ranks notice, and steps of ranks that have all their batches cost nothing. If all ranks announce it,
nothing follows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_sparse.aggregators.transaction import Exchange, Flags, gather_flags, refuse
from hvd_sparse.exchange.planned import PlannedExchange
from hvd_sparse.transport.communicator import Communicator

REMEDY = (
    "Give every rank the same number of batches, for example by dataset.repeat() with "
    "steps_per_epoch=int(hvd.allreduce(steps, op=hvd.Min)), or let all ranks stop together: put "
    "hvd.callbacks.MetricAverageCallback before EarlyStopping."
)
_TOLD = re.compile(r"Rank\D*(\d+)\D*takes no more steps after\D*(\d+)\D*and rank\D*(\d+)")


class Ending:
    """Announces that this rank takes no more steps.

    Args:
        planned: the exchange in which other ranks may wait.
        eager: whether steps run eagerly.
        scaled: whether a step begins with `everywhere`, as with loss scaling.
    """

    def __init__(self, planned: PlannedExchange, eager: bool, scaled: bool):
        self.eager = eager
        self._planned, self._scaled = planned, scaled
        self._run: Any = self._announce
        if not eager:  # by the operations of a graph, as the other ranks are about to exchange by these
            traced = tf.function(self._announce, [tf.TensorSpec([], tf.int32)], autograph=False, jit_compile=False)
            self._run = traced.get_concrete_function()

    def announce(self, steps: int) -> None:
        """Announces it after a number of steps; a collective, which raises InvalidArgumentError on every rank.

        Nothing is raised if all ranks announce it.
        """
        refuse(self._run(tf.constant(steps)))

    def _announce(self, steps: tf.Tensor) -> tf.Tensor:
        world = self._planned.grid.world
        if self._scaled:
            name = f"{self._planned.name}.everywhere"
            known = world.allreduce(tf.minimum(steps, 0) - 1, "min", name)
        else:
            name = f"{self._planned.name}.commit"
            known = ask(self._planned.exchange_not_finite(), world, name)
        return gather_flags(world, name, Flags(steps=steps + after(tf.constant(1), known)))


def ask(exchanges: Sequence[Exchange], world: Communicator, name: str) -> tf.Tensor:
    """The culprits of exchanges that were not finite, [exchanges] int32; a collective, the one that `commit` begins."""
    # Each collective uses a value of the one before: of those on which others only wait, TensorFlow runs none.
    # Between two exchanges of a recipe with `every`, ranks exchange nothing but whether all is finite.
    shown = [[each.mean] if each.nonfinite is None else [each.mean, each.nonfinite] for each in exchanges]
    culprits = [after(each.culprit(), known) for each, known in zip(exchanges, shown, strict=True)]
    return world.allreduce(tf.stack(culprits), "max", name)


def after(value: tf.Tensor, others: Any) -> tf.Tensor:
    """A number of at least 0, int32, that is known only after others are."""
    flat = [tf.cast(tf.reshape(each, [-1]), tf.float32) for each in tf.nest.flatten(others, expand_composites=True)]
    return tf.where(tf.math.is_nan(tf.reduce_sum(tf.concat(flat, 0))), tf.maximum(value, 0), value)


def everywhere(condition: tf.Tensor, world: Communicator, name: str) -> tf.Tensor:
    """Whether a condition ([] bool) holds on every rank, [] bool; a collective of 4 bytes, `name` that of the exchange.

    Raises:
        tf.errors.InvalidArgumentError: on every rank, if one has announced that it takes no more steps.
    """
    name = f"{name}.everywhere"
    lowest = world.allreduce(tf.cast(condition, tf.int32), "min", name)

    def refused() -> tf.Tensor:
        with tf.control_dependencies([refuse(gather_flags(world, name, Flags(written=after(lowest, lowest) > 0)))]):
            return tf.identity(lowest)

    return tf.cond(lowest < 0, refused, lambda: lowest) > 0


def message(error: Exception) -> str:
    """What an error tells about a rank that takes no more steps; "" if it is about something else."""
    found = _TOLD.search(str(error))
    if found is None:
        return ""
    ended, steps, going = found.groups()
    return (
        f"Rank {ended} takes no more steps after {steps} in this epoch, and rank {going} does: rank {ended} has no "
        f"more batches, or it alone was stopped (model.stop_training). {REMEDY}"
    )
