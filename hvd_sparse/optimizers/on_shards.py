"""The interface of optimizers that need whole variables but can run on shards, such as LARS and LAMB.

The exchange cuts the flat vector of all gradients into shards without regard to variables. So an optimizer gets the
pieces of variables that lie in a shard, computes what it needs of whole variables as sums over their pieces, and
moves the pieces once these sums are added up over the ranks of a node. It implements the methods of `RunsOnShards`;
this package need not know its class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import tensorflow as tf


class Piece(NamedTuple):
    """The part of one variable that lies in a shard, [k] float32 each.

    Attributes:
        variable: the whole variable, whose name decides how it is treated.
        weight: its elements in the shard.
        gradient: the gradients of these elements.
        slots: the slots of these elements, by the name of the optimizer's attribute.
    """

    variable: Any
    weight: tf.Tensor
    gradient: tf.Tensor
    slots: Mapping[str, tf.Tensor]


@runtime_checkable
class RunsOnShards(Protocol):
    """An optimizer whose step consists of sums over each variable and of element-wise operations that use them."""

    @property
    def runs_on_shards(self) -> bool:
        """Whether `shard_step` is the step of exactly this class; False for a subclass with another step."""

    def build_without_slots(self, variables: Sequence[Any]) -> None:
        """Like `build`, without the slots."""

    def settings_alone(self) -> dict[str, Any]:
        """Arguments with which another optimizer of this class takes the same step on a variable of one rank only."""

    def shard_sums(self, pieces: Sequence[Piece]) -> tuple[tf.Tensor, Sequence[Any]]:
        """What to add up over all pieces of a variable, float64 [pieces, 2], and values to pass to `shard_step`."""

    def shard_step(
        self, pieces: Sequence[Piece], begun: Sequence[Any], sums: tf.Tensor, learning_rate: Any
    ) -> list[tuple[tf.Tensor, dict[str, tf.Tensor]]]:
        """What to subtract from each piece, [k] float32, and its new slots; writes nothing.

        Args:
            pieces: at least one.
            begun: what `shard_sums` returned with its sums.
            sums: float64 [pieces, 2], for each piece the total of `shard_sums` over all pieces of its variable.
            learning_rate: the learning rate of this step.
        """


def offered(optimizer: Any) -> RunsOnShards | None:
    """The optimizer, if it has these methods and its class has the step that they take; else None."""
    return optimizer if isinstance(optimizer, RunsOnShards) and optimizer.runs_on_shards else None
