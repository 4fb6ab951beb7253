"""How a vector is cut into one block per rank, and which rank owns which block in which round."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf


class Blocks(NamedTuple):
    """A vector, padded with zeros and cut into P blocks of equal length; block b is [b * length : (b + 1) * length].

    Attributes:
        size: d, the number of elements of the vector, at least 1.
        ranks: P.
    """

    size: int
    ranks: int

    @property
    def length(self) -> int:
        """The number of elements of a block, ceil(d / P)."""
        return -(-self.size // self.ranks)

    @property
    def padded(self) -> int:
        """The number of elements of all blocks together."""
        return self.ranks * self.length

    def cut(self, vector: tf.Tensor) -> tf.Tensor:
        """Cuts a vector [d] into blocks [P, length]."""
        return tf.reshape(tf.pad(vector, [[0, self.padded - self.size]]), [self.ranks, self.length])

    def join(self, blocks: tf.Tensor) -> tf.Tensor:
        """Joins blocks [P, length] into a vector [d]."""
        return tf.reshape(blocks, [self.padded])[: self.size]

    def owner_of(self, block: Any, round: Any, rotate: bool) -> Any:
        """The rank that averages a block: (b + t) % P in round t, so that each takes its turn; b without rotation.

        Args:
            block: integers of any shape.
            round: an integer, at least 0.
            rotate: whether owners change from round to round.
        """
        return (block + round) % self.ranks if rotate else block

    def block_of(self, rank: Any, round: Any, rotate: bool) -> Any:
        """The block that a rank owns: the inverse of `owner_of`."""
        return (rank - round) % self.ranks if rotate else rank

    def by_owner(self, blocks: tf.Tensor, round: tf.Tensor, rotate: bool) -> tf.Tensor:
        """Reorders rows [P, ...] from the order of blocks to the order of their owners in a round."""
        return tf.roll(blocks, _turns(round, self.ranks), axis=0) if rotate else blocks

    def by_block(self, owned: tf.Tensor, round: tf.Tensor, rotate: bool) -> tf.Tensor:
        """Reorders rows [P, ...] from the order of owners in a round to the order of their blocks."""
        return tf.roll(owned, -_turns(round, self.ranks), axis=0) if rotate else owned


def _turns(round: tf.Tensor, ranks: int) -> tf.Tensor:
    return tf.cast(round % ranks, tf.int32)
