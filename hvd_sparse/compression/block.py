"""Block: one of several interleaved blocks of a vector in each step, in turn, the same on all senders."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.compression.base import Coded, Compressor, Selection
from hvd_sparse.compression.quantizers import QSGD, Plain, Quantizer
from hvd_sparse.compression.selection import Steps, check_wire_dtype, rounding_seed, slices_of
from hvd_sparse.spec import Spec, shards

PAIR_BITS = 64  # an index and a float32
BUCKET = 128  # values with a scale of their own, at 4 and 8 bits


class Deal(NamedTuple):
    """How the elements of a vector are dealt out to blocks.

    The vector is cut into pieces of `longest` elements, the last ones shorter or empty (`spec.shards`), and the
    elements of each piece are dealt out to the blocks one by one. What a block has of a piece is padded with zeros to
    `each`.

    Attributes:
        size: elements of the vector.
        pieces: at least 1.
        blocks: how many were asked for, at least 1; there are `cycle`, so that none is empty where pieces are short.
    """

    size: int
    pieces: int
    blocks: int

    @property
    def longest(self) -> int:
        """The elements of the longest piece."""
        return -(-self.size // self.pieces)

    @property
    def each(self) -> int:
        """The elements of one block in one piece, with padding."""
        return -(-self.longest // self.blocks)

    @property
    def cycle(self) -> int:
        """The number of blocks, and of steps until all elements had their turn."""
        return -(-self.longest // self.each)

    def take(
        self, total: tf.Tensor, residual: tf.Tensor | None, step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Adds up, and takes the block whose turn it is; one pass over memory.

        Args:
            total: [size] float32.
            residual: [size] float32; None for zeros.
            step: [] int64, the number of blocks taken before.

        Returns:
            The sum [size], the block's values [pieces, each], zeros if a sum is not finite, and whether all sums are,
            [] bool.
        """
        addend = tf.zeros([0]) if residual is None else residual
        return ops.library().hvd_take_block(total=total, residual=addend, step=step, **self._numbers)

    def keep(self, kept: tf.Tensor, values: tf.Tensor, decoded: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Replaces the block in `kept` [size] by values - decoded, both [pieces, each]; it reuses kept's memory."""
        return ops.library().hvd_keep_block(kept=kept, values=values, decoded=decoded, step=step, **self._numbers)

    def spread(self, values: tf.Tensor, step: tf.Tensor, divisor: float, dtype: tf.DType) -> tf.Tensor:
        """The vector [size] of a dtype with the block's values [pieces, each] / divisor, and zeros elsewhere."""
        return ops.library().hvd_spread_block(
            values=values, step=step, divisor=divisor, size=self.size, T=dtype, **self._numbers
        )

    def places(self, step: tf.Tensor) -> tf.Tensor:
        """The index in the vector of each element of the block, [pieces, each] int32; -1 where it is padding."""
        turn = tf.cast(step % self.cycle, tf.int32)
        in_piece = turn + tf.range(self.each) * self.cycle
        found = tf.range(self.pieces)[:, tf.newaxis] * self.longest + in_piece
        return tf.where((in_piece < self.longest) & (found < self.size), found, -1)

    def count(self, step: tf.Tensor) -> tf.Tensor:
        """The number of elements of the block, without padding, [] int32."""
        turn = tf.cast(step % self.cycle, tf.int32)
        lengths = np.array([piece.size for piece in shards(self.size, self.pieces)], np.int32)
        return tf.reduce_sum(tf.maximum((lengths - turn + self.cycle - 1) // self.cycle, 0))

    @property
    def _numbers(self) -> dict[str, int]:
        return {"pieces": self.pieces, "blocks": self.blocks}


@dataclasses.dataclass(frozen=True)
class Block(Compressor):
    """One of several interleaved blocks of the vector, another one in each step, the same on all senders.

    As all senders send the same elements, nobody has to be told their positions, and nothing waits for longer than it
    takes until its block has its turn. Relatives: globally random blocks (CSER, Xie et al. 2020).

    The vector is dealt out by a `Deal` with a piece for each sender. What the block has of a piece is encoded by
    itself, since `RotatingBlocks` sends each piece to another rank: `coded` of the selection has a row for each.

    Attributes:
        blocks: how many there are, at least 1; in each step one is sent.
        wire_dtype: "float32", "float16" or "bfloat16", in which values travel if there is no quantizer.
        quantizer: encodes values in fewer bits; the rounding error stays in the residual.
        seed: seed of the quantizer's rounding; it advances with the step and differs between vectors and ranks.
    """

    disk_name = "Block"
    blocks: int
    wire_dtype: str = "float32"
    quantizer: Quantizer | None = None
    seed: int = 0

    def __post_init__(self):
        if isinstance(self.blocks, bool) or not isinstance(self.blocks, int) or self.blocks < 1:
            raise ValueError(
                f"Expected blocks to be a whole number of at least 1, got {self.blocks!r}: 3 sends a third."
            )
        check_wire_dtype(self.wire_dtype)
        if self.quantizer is not None and self.wire_dtype != "float32":
            raise ValueError(
                f"Expected a wire_dtype or a quantizer, got {self.wire_dtype!r} and {self.quantizer!r}: pass only one."
            )
        if self.quantizer is not None and self.quantizer.by_place:
            raise ValueError(f"Expected a quantizer whose scales do not depend on places, got {self.quantizer!r}.")

    @property
    def has_own_code(self) -> bool:  # type: ignore[override]
        """True if there is a quantizer."""
        return self.quantizer is not None

    @property
    def share(self) -> float:
        """One block's share of the vector."""
        return 1.0 / self.blocks

    @property
    def coder(self) -> Quantizer:
        """The quantizer, or what casts values to the wire dtype."""
        return self.quantizer or Plain(self.wire_dtype)

    def create(self, spec: Spec) -> tf.Module:
        return Turns(spec)

    def count(self, size):
        """The elements of the first block, if the vector is one piece."""
        return -(-size // self.blocks)

    def at_density(self, density):
        """The same with as many bits as a selection of that density takes with its positions: 64 for each element sent.

        With more than one block's, quantized values get more bits: 4, 8 or 16; at 1 all is sent unrounded, as a dense
        step. Values that are not quantized stay in the wire dtype.
        """
        bits, own = PAIR_BITS * density, self.coder.code_bytes(8)  # bytes of eight values are bits of one
        if self.quantizer is None or bits <= own:
            return dataclasses.replace(self, blocks=max(1, round(own / bits)))
        if bits <= 8.0:
            return dataclasses.replace(self, blocks=1, quantizer=QSGD(4 if bits <= 4.0 else 8, BUCKET))
        wire = "float16" if bits <= 16.0 else "float32"
        return dataclasses.replace(self, blocks=1, quantizer=None, wire_dtype=wire)

    def compress(self, parts, state, residual=None):
        alone = parts.shape[0] == 1 and parts.dtype == tf.float32
        total = parts[0] if alone else ops.sum_parts(parts)[0]
        deal, step = state.deal(self.blocks), state.step.read_value()
        summed, values, finite = deal.take(total, residual, step)
        if self.coder.headroom != 1.0:
            finite &= tf.reduce_all(tf.math.is_finite(values * self.coder.headroom))
            values = tf.where(finite, values, 0.0)
        seed = rounding_seed(self.seed, state.spec, step * deal.pieces)
        codes, scales = self.coder.encode_rows(values, seed)
        decoded = tf.reshape(self.coder.decode_rows(codes, scales, deal.each), values.shape)
        return Selection(
            slices=self._slices(decoded, deal, step),
            residual=deal.keep(summed, values, decoded, step),
            culprit=tf.cond(finite, lambda: tf.constant(0), lambda: _culprit(parts)),
            updates=state.next_step(),
            coded=Coded(codes, scales, self.coder),
        )

    def _slices(self, decoded: tf.Tensor, deal: Deal, step: tf.Tensor) -> tf.IndexedSlices:
        values, places = tf.reshape(tf.cast(decoded, self.wire_dtype), [-1]), tf.reshape(deal.places(step), [-1])
        if deal.pieces * deal.each * deal.cycle > deal.size:
            found = places >= 0
            values, places = tf.boolean_mask(values, found), tf.boolean_mask(places, found)
        return slices_of(values, places, deal.size)


def _culprit(parts: tf.Tensor) -> tf.Tensor:
    """1 + the number of the first part that is not finite, or 1 + the number of parts if all are; [] int32."""
    _, culprit = ops.sum_parts(parts)
    return tf.where(culprit == 0, tf.shape(parts)[0] + 1, culprit)


class Turns(Steps):
    """The state of `Block` for a vector: the number of blocks sent so far."""

    def __init__(self, spec: Spec):
        super().__init__(spec)
        self.spec = spec

    def deal(self, blocks: int) -> Deal:
        """How the vector is dealt out to so many blocks."""
        return Deal(self.spec.size, self.spec.senders, blocks)


def turns_of(state: tf.Module) -> Turns:
    """The state of the `Block` in the state of a compressor around it."""
    return next(each for each in (state, *state.submodules) if isinstance(each, Turns))
