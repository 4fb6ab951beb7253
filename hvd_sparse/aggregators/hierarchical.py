"""Dense exchange inside the node, any other aggregator across nodes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import tensorflow as tf

from hvd_sparse import collectives, ops
from hvd_sparse.aggregators.base import Aggregator, AggregatorState
from hvd_sparse.aggregators.transaction import Parts, Reduced, Traffic, dense, marked
from hvd_sparse.spec import Shard, Spec, own_shard, shards
from hvd_sparse.transport.communicator import Communicator


@dataclasses.dataclass(frozen=True)
class Hierarchical(Aggregator):
    """Reduce-scatter inside the node, `inner` across nodes on a shard, all-gather inside the node.

    With a dense inner it is 2DTAR (CommLib 5.3), with a sparse one HiTopKComm (CommLib Algorithm 2). A vector is cut
    into n shards of ceil(size / n) elements, the last ones shorter or empty; nothing is padded. The reduce-scatter is
    an all-to-all and a local sum in rank order, in the inner's own pass over memory. The last all-gather carries
    indices and values if these are fewer bytes than the dense shards. If the ranks' numbers of entries differ, the
    expected number decides, and each rank sends its own number along.

    Attributes:
        inner: exchanges each shard among the ranks with the same local rank; its residual is a shard of the node's sum.

    Steps and bytes sent per rank: n - 1 and (n - 1) / n of the vector, then the inner's, then n - 1 and (n - 1) times
    the smaller of the dense shard and its contributions, plus 8 bytes per message if their numbers differ.
    """

    disk_name = "Hierarchical"
    goes_by_nodes = True
    inner: Aggregator

    def __post_init__(self):
        if not self.inner.nests:
            raise ValueError(
                f"{type(self.inner).__name__} cannot work inside Hierarchical: put it outermost, around Hierarchical."
            )

    @property
    def sends_all(self):
        """As for the inner."""
        return self.inner.sends_all

    @property
    def nests(self):
        """False: a node contains no nodes."""
        return False

    def at_density(self, density):
        return dataclasses.replace(self, inner=self.inner.at_density(density))

    def holding(self):
        return dataclasses.replace(self, inner=self.inner.holding())

    def reduce(self, parts, divisor, state):
        spec, node = state.spec, state.communicator
        shard, scattered = self._scatter(parts, spec, node)
        reduced = self.inner.reduce(shard, divisor, state.inner)
        total, nonfinite, gathered = self._gather(reduced, divisor, state)
        traffic = reduced.traffic.plus(Traffic(inside=scattered + gathered))
        return reduced._replace(total=total, nonfinite=nonfinite, traffic=traffic)

    def residual(self, state):
        own = own_shard(state.spec.size, state.communicator)
        after = state.spec.size - own.offset - own.size
        return tf.pad(self.inner.residual(state.inner), [[own.offset, after]])

    def node_residual(self, state):
        """As in the base class, by an all-gather of float32 shards in the node: n - 1 steps, 4 d (n - 1) / n bytes."""
        spec, node = state.spec, state.communicator
        sizes = [shard.size for shard in shards(spec.size, node.size)]
        own = self.inner.node_residual(state.inner)
        return node.allgather(own, f"{spec.name}.unsent", sizes) / float(node.size)

    def restored(self, state, residual):
        own = own_shard(state.spec.size, state.communicator)
        return self.inner.restored(state.inner, residual[own.offset : own.offset + own.size])

    def contributions(self, size, members):
        return None

    def _create(self, spec, communicator):
        node, cross = spec.grid.node, spec.grid.cross
        own = own_shard(spec.size, node)
        name = f"{spec.name}.shard"
        shard = spec._replace(size=own.size, offset=own.offset, parts=node.size, name=name)
        return AggregatorState(spec, node, self.inner._create(shard, cross))

    def _scatter(self, parts: Parts, spec: Spec, node: Communicator) -> tuple[Parts, int]:
        """This rank's shard of every local rank's vector, and the bytes sent."""
        if node.size == 1:
            return parts, 0
        sizes = [shard.size for shard in shards(spec.size, node.size)]
        own = sizes[node.rank]
        received = node.alltoall(parts.rows[0], sizes, f"{spec.name}.reduce_scatter")
        rows = tf.reshape(received, [node.size, own or -1])
        return Parts(rows, node.ranks), (spec.size - own) * spec.dtype.size

    def _gather(self, reduced: Reduced, divisor: int, state: AggregatorState):
        """The whole vector's total gathered from its shards, whether it is not finite, and the bytes sent."""
        spec, node = state.spec, state.communicator
        if node.size == 1:
            return reduced.total, reduced.nonfinite, 0
        if self.inner.sends_nothing:
            return tf.zeros([spec.size], spec.dtype), reduced.nonfinite, 0
        own = own_shard(spec.size, node)
        sizes = [each.size for each in shards(spec.size, node.size)]
        name = f"{spec.name}.all_gather"
        if self._goes_by_count(spec):
            return _gathered_by_count(reduced, _placed(reduced, own, spec), node, name)
        told = reduced.nonfinite if min(sizes) > 0 else None  # an empty shard has no value to mark
        counts = self._sparse_counts(spec)
        if counts is None:
            shard = _marked_as(told, dense(reduced.total, own.size, divisor, spec.dtype))
            mean = node.allgather(shard, name, sizes)
            return mean, _seen(told, mean, sizes), (node.size - 1) * own.size * spec.dtype.size
        placed = _placed(reduced, own, spec)
        placed = tf.IndexedSlices(_marked_as(told, placed.values), placed.indices, placed.dense_shape)
        total = collectives.allgather_sum(placed, node, name, counts)
        return total, _seen(told, total.values, counts), (node.size - 1) * collectives.message_bytes(placed)

    def _sparse_counts(self, spec: Spec) -> list[int] | None:
        """Entries in each shard's sum if index and value pairs are fewer bytes than dense shards, else None."""
        counts = _of_shards(spec, self.inner.contributions)
        return counts if counts is not None and _is_sparse(counts, spec) else None

    def _goes_by_count(self, spec: Spec) -> bool:
        """Whether numbers of pairs differ between ranks and the expected number is fewer bytes than dense shards."""
        counts = _of_shards(spec, self.inner.uneven_contributions)
        return counts is not None and _is_sparse(counts, spec)


def _of_shards(spec: Spec, count_of: Callable[[int, int], int | None]) -> list[int] | None:
    """Entries in each shard's sum; None unless the number is known for all shards."""
    members = spec.grid.cross.size
    counts = [count_of(shard.size, members) if shard.size else 0 for shard in shards(spec.size, spec.grid.node.size)]
    known = [count for count in counts if count is not None]
    return known if len(known) == len(counts) else None


def _is_sparse(counts: Sequence[int], spec: Spec) -> bool:
    """Whether index and value pairs are fewer bytes than dense shards."""
    return 8 * sum(counts) < spec.dtype.size * spec.size


def _placed(reduced: Reduced, own: Shard, spec: Spec) -> tf.IndexedSlices:
    """The entries of this rank's shard, with their indices in the vector."""
    return tf.IndexedSlices(reduced.total.values, reduced.total.indices + own.offset, tf.constant([spec.size]))


def _gathered_by_count(reduced: Reduced, placed: tf.IndexedSlices, node: Communicator, name: str):
    """All entries, whether any rank's are not finite, and the bytes sent; an empty shard counts as finite."""
    nonfinite = tf.constant(False) if reduced.nonfinite is None else reduced.nonfinite
    total, told = collectives.allgather_counted(placed, nonfinite, node, name)
    return total, told, (node.size - 1) * collectives.counted_bytes(placed)


def _marked_as(nonfinite: tf.Tensor | None, values: tf.Tensor) -> tf.Tensor:
    """The values that a rank passes on, marked if they are known not to be finite."""
    return values if nonfinite is None else ops.mark_nonfinite(values, nonfinite)


def _seen(nonfinite: tf.Tensor | None, gathered: tf.Tensor, lengths: Sequence[int]) -> tf.Tensor | None:
    """Whether any of the gathered values are marked; None if they cannot show it."""
    return None if nonfinite is None else marked(gathered, [0, *itertools.accumulate(lengths[:-1])])
