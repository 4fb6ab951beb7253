"""Sparse contributions that are added up on the way, not only at the end."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse import collectives
from hvd_sparse.aggregators import reports
from hvd_sparse.aggregators.base import Aggregator, AggregatorState
from hvd_sparse.aggregators.counting import CountingCommunicator
from hvd_sparse.aggregators.transaction import Reduced, Update, attended, blame, nothing
from hvd_sparse.collectives.dynamic import check_of_sums, combine_dense, combine_quantized
from hvd_sparse.collectives.prepared import Layout
from hvd_sparse.collectives.sparse import SPARSE
from hvd_sparse.compression.base import Compressor
from hvd_sparse.compression.quantizers import Quantizer
from hvd_sparse.compression.selectors import harmless
from hvd_sparse.costs import collectives as collective_costs
from hvd_sparse.costs.collectives import CANDIDATES, Load
from hvd_sparse.spec import Spec
from hvd_sparse.transport.communicator import Communicator

COLLECTIVES = ("auto", *CANDIDATES)
_FILLS_IN = 1 / 16  # a density at which the sums of a few ranks are hardly sparse


class _Summing(AggregatorState):
    """The compressor's state, the chosen collective and, if sums are quantized, the rounding error of this piece."""

    def __init__(self, spec: Spec, communicator: Communicator, inner: tf.Module, choice: str, rounds: bool):
        super().__init__(spec, communicator, inner)
        self.choice = choice
        begin, end = self.piece
        self.error: tf.Variable | None = None
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"{spec.name}_summing_step")
        if rounds and communicator.size > 1:  # a single rank sends nothing, so it does not round
            zeros = tf.zeros([end - begin], tf.float32)
            self.error = tf.Variable(zeros, trainable=False, name=f"{spec.name}_error")

    @property
    def piece(self) -> tuple[int, int]:
        """Begin and end of the piece of the vector that this rank sums for all ranks."""
        rank, ranks = self.communicator.rank, self.communicator.size
        return rank * self.spec.size // ranks, (rank + 1) * self.spec.size // ranks


@dataclasses.dataclass(frozen=True)
class SparseAllReduce(Aggregator):
    """Each rank sends what its compressor selects, and one of SparCML's sparse all-reduces adds up the contributions.

    With `Compressed`, every rank receives P k elements; here it receives the sum: fewer elements if the index sets
    overlap, and never more than a vector. Values travel as float32, whatever they were rounded to before.

    With a quantizer, the sums of `dynamic` are gathered in a few bits. The rank that sums a piece of the vector keeps
    the rounding error, adds it to its next sums, and applies what the others decode. So all ranks get the same bits,
    and nothing is lost but float32's rounding.

    Attributes:
        compressor: usually wrapped in `ErrorFeedback`.
        collective: "recursive_doubling", "split_allgather", "dynamic", "allgather", or "auto": the one that is expected
            to be fastest among these ranks, from calls that are timed once, for random index sets (SparCML's appendix
            B; those of gradients overlap more). It is chosen when the state is created; `decided` returns it.
        quantizer: quantizer of the sums of "dynamic", which "auto" then means; None sends them as float32.
        seed: seed of the quantizer's rounding; it advances with the step and differs between vectors and ranks.

    Steps and bytes sent per rank: the collective's.
    """

    disk_name = "SparseAllReduce"
    has_own_code = True
    compressor: Compressor
    collective: str = "auto"
    quantizer: Quantizer | None = None
    seed: int = 0

    def __post_init__(self):
        if self.collective not in COLLECTIVES:
            raise ValueError(f"Expected collective to be one of {', '.join(COLLECTIVES)}, got {self.collective!r}.")
        if self.quantizer is not None and self.collective not in ("auto", "dynamic"):
            raise ValueError(
                f"A quantizer encodes the sums that 'dynamic' gathers, and {self.collective} gathers none: pass only "
                "one of them, or quantize what each rank sends with ErrorFeedback(Quantized(compressor, quantizer))."
            )
        if self.quantizer is not None:
            check_of_sums(self.quantizer)

    def reduce(self, parts, divisor, state):
        spec = state.spec
        if spec.size == 0:
            parts = attended(parts, self.compressor, state.inner)
            return nothing(parts, tf.cast(parts.rows[0], spec.dtype))
        selection = self.compressor.compress(parts.rows, state.inner)
        written, asking = reports.averaged(selection, self.compressor, state)
        message = _layout(spec.size).pack(harmless(selection), selection.slices.indices)
        counted = CountingCommunicator(state.communicator, spec.grid)
        total, culprit, updates = self._sum(message, counted, state)
        own_culprit = blame(selection.culprit, parts.sources, spec.grid)
        return Reduced(
            # TensorFlow's graphs would turn a plain division by a constant into a product with a rounded reciprocal.
            total=tf.cast(tf.math.divide_no_nan(tf.reshape(total, [spec.size]), float(divisor)), spec.dtype),
            culprit=tf.where(own_culprit == 0, culprit, own_culprit),
            updates=(*written, *updates),
            traffic=counted.traffic.plus(asking),
            selected=collectives.count(selection.slices),
            considered=spec.size,
        )

    def residual(self, state):
        kept = self.compressor.residual(state.inner)
        residual = tf.zeros([state.spec.size], tf.float32) if kept is None else kept.read_value()
        if state.error is None:
            return residual
        begin, end = state.piece
        return residual + tf.pad(state.error.read_value(), [[begin, state.spec.size - end]])

    def restored(self, state, residual):
        variable = self.compressor.residual(state.inner)
        begin, end = state.piece
        if variable is None:
            return () if state.error is None else (Update(state.error, residual[begin:end]),)
        share = Update(variable, residual / float(state.communicator.size))
        return (share,) if state.error is None else (share, Update(state.error, tf.zeros([end - begin])))

    def at_density(self, density):
        """At densities at which sums fill in, the collective becomes `dynamic`."""
        collective = "dynamic" if density >= _FILLS_IN else self.collective
        return dataclasses.replace(self, compressor=self.compressor.at_density(density), collective=collective)

    def decided(self, state):
        """The name of the collective that "auto" chose; None if it was given."""
        return state.choice if self.collective == "auto" else None

    def contributions(self, size, members):
        return None

    def _create(self, spec, communicator):
        with tf.init_scope():  # calls are timed immediately, even while a function is traced
            choice = self._choose(spec.size, communicator)
        inner = self.compressor.create(spec)
        return _Summing(spec, communicator, inner, choice, self.quantizer is not None)

    def _choose(self, size: int, communicator: Communicator) -> str:
        """The collective for a vector; a collective call if candidates have to be timed."""
        if self.collective != "auto":
            return self.collective
        kept = self.compressor.expected(size)
        if self.quantizer is not None or kept is None or size == 0:
            return "dynamic"  # at any density, it sends hardly more than a dense ring
        if communicator.size == 1:
            return "split_allgather"
        transport = collectives.auto.transport(communicator)
        load = Load(communicator.size, size, 1, 4, float(kept), float(size), float(_layout(size).dense_above))
        return min(CANDIDATES, key=lambda name: collective_costs.seconds(name, load, transport))

    def _sum(
        self, message: tf.Tensor, counted: CountingCommunicator, state: _Summing
    ) -> tuple[tf.Tensor, tf.Tensor, tuple[Update, ...]]:
        """The sum over all ranks, 0 or 1 + a rank whose sums are not finite, and the updates of the rounding state."""
        layout, name = _layout(state.spec.size), f"{state.spec.name}.sparse_allreduce"
        if self.quantizer is not None and state.error is not None:
            seed = state.step + (self.seed + (state.spec.number << 32))
            quantized = combine_quantized(layout, message, self.quantizer, state.error, seed, counted, name)
            updates = (Update(state.error, quantized.error), Update(state.step, state.step + 1))
            return quantized.total, quantized.culprit, updates
        choice = state.choice if self.collective == "auto" else self.collective
        if choice == "dynamic":
            return combine_dense(layout, message, counted, name), tf.constant(0), ()
        return layout.dense(SPARSE[choice](layout, message, counted, name)), tf.constant(0), ()


def _layout(size: int) -> Layout:
    """The layout of a flat float32 vector that is summed."""
    return Layout(size, (), tf.float32, "sum", None)
