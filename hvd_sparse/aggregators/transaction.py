"""What passes between the levels of an exchange, and how an exchange ends.

An exchange is a transaction: it computes the mean and the new state, and the state is written only after all
ranks agree that nobody's gradient held a NaN or an infinity. So a step that fails, fails on every rank and leaves
every residual as it was.

Ranks agree on it by what they exchange anyway, wherever they can: a NaN or an infinity of one rank is one in a dense
sum, and a rank that sends a selection, or hands on a part of the mean, makes its first value NaN when it knows of
one. All ranks receive the same bits and look at the same places. Only once something is wrong do they ask each other
whose fault it is; a collective of its own in every step would cost as much as the smallest exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.compression.base import Compressor
from hvd_sparse.transport.communicator import Communicator, Grid

REMEDY = (
    "Nothing was written: variables, residuals and checkpoints are as before this step. Look for a learning rate that "
    "is too high or for bad input on that rank, resume from the last checkpoint, or train with loss scaling "
    "(hvd.LossScaleOptimizer), which skips such steps on all ranks."
)


class Parts(NamedTuple):
    """Vectors that are to be added: rows [n, size], and the world rank that each row comes from."""

    rows: tf.Tensor
    sources: tuple[int, ...]


class Update(NamedTuple):
    """A value [..] that a variable takes on commit, where `when` ([] bool) holds or is None."""

    variable: tf.Variable
    value: tf.Tensor
    when: tf.Tensor | None = None


class Traffic(NamedTuple):
    """Payload bytes that this rank sends in one exchange, inside its node and to other nodes."""

    inside: int | tf.Tensor = 0
    across: int | tf.Tensor = 0

    def plus(self, other: Traffic) -> Traffic:
        """The traffic of both."""
        return Traffic(self.inside + other.inside, self.across + other.across)


class Reduced(NamedTuple):
    """What one level of an exchange hands to the level around it.

    Attributes:
        total: the sum over ranks, divided, dense [size] in the spec's dtype; or contributions that are still to be
            added, in the order in which they stand, and divided.
        culprit: [] int32, 0, or 1 + the world rank whose vector is not finite, as far as this rank can tell.
        updates: the state to be written on commit.
        traffic: what this rank sent.
        selected: elements that this rank chose to send.
        considered: elements among which it chose.
        nonfinite: [] bool, whether any rank's vector is not finite, the same on every rank that has exchanged; None
            where what was exchanged does not tell it, and ranks have to ask each other.
    """

    total: tf.Tensor | tf.IndexedSlices
    culprit: tf.Tensor
    updates: tuple[Update, ...]
    traffic: Traffic
    selected: int | tf.Tensor
    considered: int
    nonfinite: tf.Tensor | None = None


class Exchange(NamedTuple):
    """An exchange that has run but is not committed yet.

    Attributes:
        mean: [size], in the vector's dtype, the same bits on every rank; or a list of tensors that it consists of.
        culprit: computes, [] int32, 0, or 1 + the world rank whose vector is not finite, as far as this rank can tell.
        nonfinite: see `Reduced`.
        updates: what `commit` writes.
        metrics: bytes_inside, bytes_across, selected, considered; each a number or a scalar tensor.
    """

    mean: tf.Tensor | list[tf.Tensor]
    culprit: Callable[[], tf.Tensor]
    nonfinite: tf.Tensor | None
    updates: tuple[Update, ...]
    metrics: dict[str, Any]


def commit(exchanges: Sequence[Exchange], labels: Sequence[str], world: Communicator, name: str) -> list[tf.Tensor]:
    """Ends several exchanges together: all ranks write all new state, or none writes any.

    Args:
        exchanges: what `Aggregator.exchange` returned.
        labels: what each one exchanged, for the message.
        world: all ranks.
        name: the same on every rank, unique among the collectives in flight.

    Returns:
        Tensors on which everything that uses the means must depend.

    Raises:
        tf.errors.InvalidArgumentError: on every rank alike where a rank's vector was not finite, or the sum over the
            ranks; it names label, rank and remedy, and nothing is written.

    Steps and bytes: none while all is well and every exchange tells it; else one all-reduce of 4 bytes an exchange.
    """
    checked = ops.check_faults(_culprits(exchanges, world, name), list(labels), REMEDY)
    with tf.control_dependencies([checked]):
        for exchange in exchanges:
            for update in exchange.updates:
                _assign(update)
    return [checked]


def _culprits(exchanges: Sequence[Exchange], world: Communicator, name: str) -> tf.Tensor:
    """What `ops.check_faults` takes, [exchanges] int32, the same on every rank."""

    def asked() -> tf.Tensor:
        return world.allreduce(tf.stack([exchange.culprit() for exchange in exchanges]), "max", name)

    told = [exchange.nonfinite for exchange in exchanges if exchange.nonfinite is not None]
    if len(told) < len(exchanges):
        return asked()

    def blamed() -> tf.Tensor:
        culprits = asked()
        return tf.where(tf.stack(told) & (culprits == 0), -1, culprits)

    nonfinite = told[0] if len(told) == 1 else tf.reduce_any(tf.stack(told))
    return tf.cond(nonfinite, blamed, lambda: tf.zeros([len(exchanges)], tf.int32))


def marked(values: tf.Tensor, starts: Sequence[int | tf.Tensor]) -> tf.Tensor:
    """Whether any of the vectors that lie one after the other in `values`, from `starts` on, is marked, [] bool."""
    return tf.reduce_any(tf.math.is_nan(tf.gather(values, tf.stack(list(starts)))))


def _assign(update: Update) -> None:
    if update.when is None:
        update.variable.assign(update.value)
        return

    def write():
        # The values of stages that are not on are empty, so the shape is only known in here.
        update.variable.assign(tf.ensure_shape(update.value, update.variable.shape))
        return True

    tf.cond(update.when, write, lambda: False)


def dense(total: tf.Tensor | tf.IndexedSlices, size: int, divisor: int, dtype: tf.DType) -> tf.Tensor:
    """The mean [size]: contributions added in the order in which they stand, divided once; a dense total as it is."""
    if isinstance(total, tf.IndexedSlices):
        return ops.sparse_sum(total.values, total.indices, size, divisor=divisor, dtype=dtype)
    return total


def attended(parts: Parts, compressor: Compressor, state: Any) -> Parts:
    """The parts of an empty shard, after what the ranks of its node do together; see `Compressor.attend`."""
    return parts._replace(rows=compressor.attend(parts.rows, state))


def nothing(parts: Parts, total: tf.Tensor | tf.IndexedSlices) -> Reduced:
    """What becomes of an empty shard: nobody sends anything.

    All of it, `total` too, has to be made of the parts. TensorFlow runs an operation whose inputs are constants when
    it optimises the graph, and so a collective that is given a constant would wait, on this rank alone, for others that
    have yet to begin the step.
    """
    return Reduced(total, tf.size(parts.rows), (), Traffic(), 0, 0)


def own_culprit(row: tf.Tensor, rank: int) -> tf.Tensor:
    """0, or 1 + this world rank where its own vector, [1, size], is not finite; [] int32."""
    _, culprit = ops.sum_parts(row)
    return tf.where(culprit == 0, 0, rank + 1)


def blame(culprit: tf.Tensor, sources: Sequence[int], grid: Grid) -> tf.Tensor:
    """Turns the number of a faulty part into that of a world rank; an overflow of the sum is put to this rank."""
    codes = [0, *(source + 1 for source in sources), grid.world.world_rank + 1]
    return tf.gather(tf.constant(codes, tf.int32), culprit)


def metrics(traffic: Traffic, selected: int | tf.Tensor, considered: int | tf.Tensor) -> dict[str, Any]:
    """Those of an `Exchange`."""
    return {
        "bytes_inside": traffic.inside,
        "bytes_across": traffic.across,
        "selected": selected,
        "considered": considered,
    }


def ring_traffic(communicator: Communicator, grid: Grid, sent: int | tf.Tensor) -> Traffic:
    """Bytes sent to the next rank of a ring, which is either on this node or not."""
    following = communicator.ranks[(communicator.rank + 1) % communicator.size]
    inside = following in grid.node.ranks
    return Traffic(inside=sent) if inside else Traffic(across=sent)
