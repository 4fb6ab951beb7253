"""What passes between the levels of an exchange, and how an exchange is committed.

An exchange is a transaction: it computes the mean and the new state, and the state is written only after all
ranks agree that no gradient held a NaN or an infinity. So a step that fails, fails on every rank and leaves every
residual as it was.

If possible, ranks agree by what they exchange anyway: a NaN or an infinity of one rank makes a dense sum not finite,
and a rank that knows of one and sends a selection, or passes on a part of the mean, sets its first value to NaN. All
ranks receive the same bits and look at the same places. Only after a fault do they ask each other which rank it was;
a separate collective in every step would cost as much as the smallest exchange.
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
    """Vectors to be added: rows [n, size], and the world rank that each row comes from."""

    rows: tf.Tensor
    sources: tuple[int, ...]


class Update(NamedTuple):
    """A value that a variable takes on commit if `when` ([] bool) is true or None."""

    variable: tf.Variable
    value: tf.Tensor
    when: tf.Tensor | None = None


class Traffic(NamedTuple):
    """Payload bytes that this rank sends in one exchange, inside its node and to other nodes."""

    inside: int | tf.Tensor = 0
    across: int | tf.Tensor = 0

    def plus(self, other: Traffic) -> Traffic:
        """The sum of both."""
        return Traffic(self.inside + other.inside, self.across + other.across)


class Reduced(NamedTuple):
    """What one level of an exchange returns to the level around it.

    Attributes:
        total: the sum over ranks, divided, dense [size] in the spec's dtype; or contributions that are still to be
            added in their order and divided.
        culprit: [] int32, 0, or 1 + the world rank whose vector is not finite, as far as this rank can tell.
        updates: the state to be written on commit.
        traffic: what this rank sent.
        selected: elements that this rank chose to send.
        considered: elements among which it chose.
        nonfinite: [] bool, whether any rank's vector is not finite, the same on every rank that has exchanged; None
            if what was exchanged does not show it, and ranks have to ask each other.
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
        mean: [size] in the vector's dtype, the same bits on every rank; or a list of the tensors that make it up.
        culprit: function that returns, [] int32, 0, or 1 + the world rank whose vector is not finite, as far as this
            rank can tell.
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
    """Commits several exchanges together: all ranks write all new state, or none writes any.

    Args:
        exchanges: what `Aggregator.exchange` returned.
        labels: a name for what each one exchanged, for the error message.
        world: all ranks.
        name: the same on every rank, unique among the collectives in flight.

    Returns:
        Tensors on which everything that uses the means must depend.

    Raises:
        tf.errors.InvalidArgumentError: on every rank, if any rank's vector or the sum over the ranks is not finite; it
            names label, rank and remedy, and nothing is written.

    Steps and bytes: none if every exchange shows that all is finite; else one all-reduce of 4 bytes per exchange.
    """
    checked = ops.check_faults(_culprits(exchanges, world, name), list(labels), REMEDY)
    with tf.control_dependencies([checked]):
        for exchange in exchanges:
            for update in exchange.updates:
                _assign(update)
    return [checked]


def _culprits(exchanges: Sequence[Exchange], world: Communicator, name: str) -> tf.Tensor:
    """The input of `ops.check_faults`, [exchanges] int32, the same on every rank."""

    def asked() -> tf.Tensor:
        return world.allreduce(tf.stack([exchange.culprit() for exchange in exchanges]), "max", name)

    def unless_written(culprits: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([culprits]):
            flags = gather_flags(world, name, Flags())
        with tf.control_dependencies([refuse(flags)]):
            return tf.identity(culprits)

    told = [exchange.nonfinite for exchange in exchanges if exchange.nonfinite is not None]
    if len(told) < len(exchanges):
        culprits = asked()
        return tf.cond(tf.reduce_any(culprits != 0), lambda: unless_written(culprits), lambda: culprits)

    def blamed() -> tf.Tensor:
        culprits = unless_written(asked())
        return tf.where(tf.stack(told) & (culprits == 0), -1, culprits)

    nonfinite = told[0] if len(told) == 1 else tf.reduce_any(tf.stack(told))
    return tf.cond(nonfinite, blamed, lambda: tf.zeros([len(exchanges)], tf.int32))


class Flags(NamedTuple):
    """What a rank tells after a fault or outside of steps.

    Attributes:
        written: whether its weights were written since the last step.
        slots: whether an optimizer's slots were, too.
        steps: 1 + the steps that it took, if it takes no more; 0 if it does.
    """

    written: bool | tf.Tensor = False
    slots: bool | tf.Tensor = False
    steps: int | tf.Tensor = 0


def gather_flags(world: Communicator, name: str, own: Flags) -> tf.Tensor:
    """What all ranks tell; a collective of 24 bytes.

    Args:
        world: the ranks that exchange.
        name: the same on every rank, unique among the collectives in flight.
        own: what this rank tells.

    Returns:
        [6] int32: 1 + the number of a rank that was written to, 1 + that of one that was not, whether slots were, 1 +
        the number of a rank that takes no more steps, 1 + that of one that does, and the former's `steps`; 0 for none.
    """
    number = world.world_rank + 1
    ends = tf.convert_to_tensor(own.steps) > 0
    told = [
        tf.where(own.written, number, 0),
        tf.where(own.written, 0, number),
        tf.cast(own.slots, tf.int32),
        tf.where(ends, number, 0),
        tf.where(ends, 0, number),
        own.steps,
    ]
    return world.allreduce(tf.stack(told), "max", f"{name}.written")


def refuse(flags: tf.Tensor) -> Any:
    """Raises an error, on all ranks alike, if the ranks tell different things; see `gather_flags`."""
    ended = ("Rank", flags[3] - 1, "takes no more steps after", flags[5] - 1, "and rank", flags[4] - 1, "does.")
    with tf.control_dependencies([tf.debugging.Assert((flags[3] == 0) | (flags[4] == 0), ended)]):
        return _refuse_written(tf.identity(flags))


def _refuse_written(flags: tf.Tensor) -> Any:
    told = (
        "Weights or optimizer state were written since the last step (load_weights, set_weights or the like) on rank",
        flags[0] - 1,
        "and not on rank",
        flags[1] - 1,
        "so their weights would drift apart: write on every rank, or on one and broadcast to the others before the "
        "next step (hvd.broadcast_variables, hvd.callbacks.BroadcastGlobalVariablesCallback). Nothing was exchanged.",
    )
    return tf.debugging.Assert((flags[0] == 0) | (flags[1] == 0), told)


def marked(values: tf.Tensor, starts: Sequence[int | tf.Tensor]) -> tf.Tensor:
    """Whether any of the vectors that lie one after another in `values`, beginning at `starts`, is marked, [] bool."""
    return tf.reduce_any(tf.math.is_nan(tf.gather(values, tf.stack(list(starts)))))


def _assign(update: Update) -> None:
    if update.when is None:
        update.variable.assign(update.value)
        return

    def write():
        # The values of inactive stages are empty, so the shape is only known in here.
        update.variable.assign(tf.ensure_shape(update.value, update.variable.shape))
        return True

    tf.cond(update.when, write, lambda: False)


def dense(total: tf.Tensor | tf.IndexedSlices, size: int, divisor: int, dtype: tf.DType) -> tf.Tensor:
    """The mean [size]: contributions are added in their order and divided once; a dense total is returned as it is."""
    if isinstance(total, tf.IndexedSlices):
        return ops.sparse_sum(total.values, total.indices, size, divisor=divisor, dtype=dtype)
    return total


def attended(parts: Parts, compressor: Compressor, state: Any) -> Parts:
    """The parts of an empty shard, after what the ranks of its node do together; see `Compressor.attend`."""
    return parts._replace(rows=compressor.attend(parts.rows, state))


def nothing(parts: Parts, total: tf.Tensor | tf.IndexedSlices) -> Reduced:
    """The result for an empty shard, for which no rank sends anything.

    All of it, including `total`, has to be computed from the parts. TensorFlow runs operations with constant inputs
    when it optimizes a graph, so a collective with a constant input would wait, on this rank alone, for ranks that
    have not begun the step.
    """
    return Reduced(total, tf.size(parts.rows), (), Traffic(), 0, 0)


def own_culprit(row: tf.Tensor, rank: int) -> tf.Tensor:
    """0, or 1 + this world rank if its own vector [1, size] is not finite; [] int32."""
    _, culprit = ops.sum_parts(row)
    return tf.where(culprit == 0, 0, rank + 1)


def blame(culprit: tf.Tensor, sources: Sequence[int], grid: Grid) -> tf.Tensor:
    """Converts the number of a faulty part to that of a world rank; an overflow of the sum counts as this rank's."""
    codes = [0, *(source + 1 for source in sources), grid.world.world_rank + 1]
    return tf.gather(tf.constant(codes, tf.int32), culprit)


def metrics(traffic: Traffic, selected: int | tf.Tensor, considered: int | tf.Tensor) -> dict[str, Any]:
    """The metrics of an `Exchange`."""
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
