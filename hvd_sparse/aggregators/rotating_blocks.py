"""Blocks of the vector that take turns, averaged by owners of their parts."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.aggregators import reports
from hvd_sparse.aggregators.base import AggregatorState
from hvd_sparse.aggregators.compressed import Compressed, Held
from hvd_sparse.aggregators.counting import CountingCommunicator
from hvd_sparse.aggregators.transaction import Reduced, Update, attended, blame, nothing
from hvd_sparse.compression.base import Selection
from hvd_sparse.compression.block import Block, Deal, turns_of
from hvd_sparse.compression.quantizers import Quantizer
from hvd_sparse.compression.selection import rounding_seed
from hvd_sparse.spec import Spec, own_shard, parts
from hvd_sparse.transport.communicator import Communicator


class _Owning(AggregatorState):
    """The compressor's state, and the rounding error of the piece of the vector that this rank owns.

    Attributes:
        piece: the shard of the vector that this rank owns.
        error: [piece.size] float32; it stays 0 on a single rank, which sends nothing.
    """

    def __init__(self, spec: Spec, communicator: Communicator, inner: tf.Module):
        super().__init__(spec, communicator, inner)
        self.piece = own_shard(spec.size, communicator)
        self.error = tf.Variable(tf.zeros([self.piece.size]), trainable=False, name=f"{spec.name}_error")

    @property
    def kept(self) -> tf.Tensor:
        """The rounding error at its place in the vector, [size] float32."""
        after = self.spec.size - self.piece.offset - self.piece.size
        return tf.pad(self.error.read_value(), [[self.piece.offset, after]])


@dataclasses.dataclass(frozen=True)
class RotatingBlocks(Compressed):
    """Each step averages one block of the vector, the same on all ranks, through the owners of its parts.

    Rank r owns the r-th of P pieces of the vector. It receives what the block has of its piece from all ranks, in few
    bits, adds it up in rank order with the rounding error that it has kept, encodes the sum, keeps the new error, and
    sends the codes to all. So all ranks decode the same bits, nothing but rounding is lost, and what a rank sends does
    not grow with P: there are no positions, and none of the other ranks' contributions to be passed on.

    Attributes:
        compressor: an `ErrorFeedback(Block(...))`, which may be in a `LocalUpdates` or `MomentumCorrection`.

    Steps and bytes sent per rank: P - 1 and (P - 1) / P of a block's codes to the owners, and as much to all (as a
    ring). Each part has its scales and one byte that says whether it is valid.
    """

    disk_name = "RotatingBlocks"
    has_own_code = True

    def __post_init__(self):
        if not any(isinstance(each, Block) for each in parts(self.compressor)):
            raise ValueError(
                f"RotatingBlocks sends a Block without positions, got {self.compressor!r}: write "
                "RotatingBlocks(ErrorFeedback(Block(...))), or Compressed(...) for what differs between ranks."
            )

    def reduce(self, parts, divisor, state):
        spec = state.spec
        if spec.size == 0:
            parts = attended(parts, self.compressor, state.inner)
            return nothing(parts, tf.cast(parts.rows[0], spec.dtype))
        step = turns_of(state.inner).step.read_value()
        selection = self.compressor.compress(parts.rows, state.inner)
        written, asking = reports.averaged(selection, self.compressor, state)
        counted = CountingCommunicator(state.communicator, spec.grid)
        mean, invalid, updates = self._through_owners(selection, step, divisor, counted, state)
        return Reduced(
            total=mean,
            culprit=blame(selection.culprit, parts.sources, spec.grid),
            updates=(*written, *updates),
            traffic=counted.traffic.plus(asking),
            selected=self._deal(state).count(step),
            considered=spec.size,
            nonfinite=invalid,
        )

    def residual(self, state):
        return super().residual(state) + state.kept

    def restored(self, state, residual):
        return (*super().restored(state, residual), Update(state.error, tf.zeros_like(state.error)))

    def at_density(self, density):
        return dataclasses.replace(self, compressor=self.compressor.at_density(density))

    def holding(self):
        return HeldBlocks(super().holding().compressor)

    def contributions(self, size, members):
        return None

    def uneven_contributions(self, size, members):
        return None

    def _create(self, spec, communicator):
        return _Owning(spec, communicator, self.compressor.create(spec))

    @property
    def _block(self) -> Block:
        return next(each for each in parts(self.compressor) if isinstance(each, Block))

    def _deal(self, state: _Owning) -> Deal:
        return turns_of(state.inner).deal(self._block.blocks)

    def _through_owners(
        self, selection: Selection, step: tf.Tensor, divisor: int, counted: CountingCommunicator, state: _Owning
    ) -> tuple[tf.Tensor, tf.Tensor, tuple[Update, ...]]:
        """The mean [size], whether any rank's part is invalid, and the updates of the owner's state."""
        deal = self._deal(state)
        parcel = _Parcel(self._block.coder, deal.each)
        coded: Any = selection.coded
        rows = parcel.packed(coded.codes, coded.scales, selection.culprit != 0)
        updates: tuple[Update, ...] = ()
        if counted.size > 1:
            name = f"{state.spec.name}.blocks"
            arrived = counted.alltoall(tf.reshape(rows, [-1]), [parcel.bytes] * counted.size, f"{name}.to_owners")
            own, error = self._summed(arrived, parcel, deal, step, state)
            updates = (Update(state.error, error),)
            rows = counted.allgather(own, f"{name}.from_owners", [parcel.bytes] * counted.size)
        values, invalid = parcel.opened(rows, deal.pieces)
        return deal.spread(values, step, float(divisor), state.spec.dtype), invalid, updates

    def _summed(
        self, arrived: tf.Tensor, parcel: _Parcel, deal: Deal, step: tf.Tensor, state: _Owning
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The parcel with the sum of what all ranks sent of this rank's piece, and the new rounding error."""
        values, invalid = parcel.opened(arrived, deal.pieces)
        own = deal._replace(size=deal.longest, pieces=1)
        error, missing = state.error.read_value(), own.size - state.piece.size
        kept, errors, _ = own.take(tf.pad(error, [[0, missing]]) if missing else error, None, step)
        sums = ops.sum_parts(values)[0][tf.newaxis] + errors
        invalid |= ~tf.reduce_all(tf.math.is_finite(sums * parcel.coder.headroom))
        sums = tf.where(invalid, 0.0, sums)
        seed = -1 - rounding_seed(0, state.spec, step)  # the ranks' own have positive ones
        codes, scales = parcel.coder.encode_rows(sums, seed)
        decoded = tf.reshape(parcel.coder.decode_rows(codes, scales, deal.each), sums.shape)
        remaining = own.keep(kept, sums, decoded, step)
        error = remaining[: state.piece.size] if missing else remaining
        return tf.reshape(parcel.packed(codes, scales, invalid), [-1]), error


class HeldBlocks(Held):
    """`Held` with the state of `RotatingBlocks`."""

    disk_name = "HeldBlocks"

    def residual(self, state):
        return super().residual(state) + state.kept

    def restored(self, state, residual):
        return RotatingBlocks(self.compressor).restored(state, residual)


class _Parcel(NamedTuple):
    """The bytes of one encoded part: codes, scales, and a byte that is 1 if the part is invalid.

    Attributes:
        coder: what encodes the part.
        each: its number of values.
    """

    coder: Quantizer
    each: int

    @property
    def lengths(self) -> list[int]:
        """The bytes of the codes, of the scales, and of the mark."""
        return [self.coder.code_bytes(self.each), 4 * self.coder.scale_count(self.each), 1]

    @property
    def bytes(self) -> int:
        """The bytes of the parcel."""
        return sum(self.lengths)

    def packed(self, codes: tf.Tensor, scales: tf.Tensor, invalid: tf.Tensor) -> tf.Tensor:
        """Parcels [n, bytes] of codes [n, c] uint8, scales [n, s] float32 and a mark [] bool for all of them."""
        rows = codes.shape[0]
        scaled = tf.reshape(tf.bitcast(scales, tf.uint8), [rows, self.lengths[1]])
        return tf.concat([codes, scaled, tf.fill([rows, 1], tf.cast(invalid, tf.uint8))], 1)

    def opened(self, parcels: tf.Tensor, rows: int) -> tuple[tf.Tensor, tf.Tensor]:
        """The values [rows, each] in parcels that lie one after another, and whether any is marked."""
        codes, scales, marks = tf.split(tf.reshape(parcels, [rows, self.bytes]), self.lengths, axis=1)
        scales = tf.bitcast(tf.reshape(scales, [rows, self.lengths[1] // 4, 4]), tf.float32)
        values = self.coder.decode_rows(codes, scales, self.each)
        return tf.reshape(values, [rows, self.each]), tf.reduce_any(marks != 0)
