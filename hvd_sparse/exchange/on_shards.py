"""What an optimizer offers that the exchange can run on shards although it looks at whole variables: LARS and LAMB.

The exchange cuts the flat vector of all gradients into shards without regard to variables. So an optimizer gets the
pieces of variables that lie in a shard, says what it has to know of whole variables as sums over their pieces, and
moves the pieces once these are added up over the ranks of a node. It brings the methods of `RunsOnShards`; this
package does not know it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import tensorflow as tf


class Piece(NamedTuple):
    """What a shard has of one variable, [k] float32 each.

    Attributes:
        variable: the whole one, to tell by its name what is to be done with it.
        weight: its elements.
        gradient: of these.
        slots: of these, by the name of the optimizer's attribute.
    """

    variable: Any
    weight: tf.Tensor
    gradient: tf.Tensor
    slots: Mapping[str, tf.Tensor]


@runtime_checkable
class RunsOnShards(Protocol):
    """An optimizer whose step consists of sums over each variable, and of what follows from them element by element."""

    @property
    def runs_on_shards(self) -> bool:
        """Whether `shard_step` is the step of this very class; False of one that is derived with another step."""

    def build_without_slots(self, variables: Sequence[Any]) -> None:
        """As `build`, but for the slots."""

    def settings_alone(self) -> dict[str, Any]:
        """Arguments with which another one of this class takes the same step on a variable that one rank alone has."""

    def shard_sums(self, pieces: Sequence[Piece]) -> tuple[tf.Tensor, Sequence[Any]]:
        """What is added up over all pieces of a variable, float64 [pieces, 2], and what `shard_step` is to have."""

    def shard_step(
        self, pieces: Sequence[Piece], begun: Sequence[Any], sums: tf.Tensor, learning_rate: Any
    ) -> list[tuple[tf.Tensor, dict[str, tf.Tensor]]]:
        """By how much each piece is to be lowered [k] float32, and its new slots; writes nothing.

        Args:
            pieces: at least one.
            begun: what `shard_sums` has returned with its sums.
            sums: float64 [pieces, 2], for each what all pieces of its variable have given in `shard_sums`.
            learning_rate: of this step.
        """


def offered(optimizer: Any) -> RunsOnShards | None:
    """The optimizer, where it brings these methods and its class has the step that they take."""
    return optimizer if isinstance(optimizer, RunsOnShards) and optimizer.runs_on_shards else None
