"""The NumPy simulation of `blocks`, as those of `simulation`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hvd_sparse.compression.quantizers import QSGD, Plain, Quantizer
from tests.gpu import reference
from tests.ops import magnitudes_reference, quantize_reference
from tests.simulation import DTYPES, Shape, divided, shard_ends


class Blocks:
    """Each step averages one block of each shard of the nodes' sums, through owners who keep their rounding error."""

    def __init__(self, shape: Shape, size: int, count: int, coder: Quantizer, dtype="float32"):
        self.shape, self.count, self.coder, self.dtype = shape, count, coder, dtype
        self.waiting = np.zeros([shape.ranks, size], np.float32)
        self.errors = np.zeros([shape.ranks, size], np.float32)
        self.steps = 0

    @property
    def residual(self) -> np.ndarray:
        """What each rank has not sent, plus the rounding error of what it owns."""
        return self.waiting + self.errors

    @residual.setter
    def residual(self, value: np.ndarray) -> None:
        self.waiting, self.errors[:] = value, 0

    def step(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        total = np.zeros(self.waiting.shape[1], np.float32)
        for local, (begin, end) in enumerate(shard_ends(total.size, self.shape.local_size)):
            if begin < end:
                total[begin:end] = self._shard(vectors, local, slice(begin, end))
        self.steps += 1
        return divided(total, self.shape.ranks, self.dtype)

    def _shard(self, vectors: Sequence[np.ndarray], local: int, shard: slice) -> np.ndarray:
        nodes, each = self.shape.nodes, self.shape.local_size
        ranks = [node * each + local for node in range(nodes)]
        for node, rank in enumerate(ranks):
            parts = [vector[shard] for vector in vectors[node * each : (node + 1) * each]]
            self.waiting[rank, shard] = reference.accumulate(parts, self.waiting[rank, shard])
        total = np.zeros(shard.stop - shard.start, np.float32)
        for owner, (begin, end) in enumerate(shard_ends(total.size, nodes)):
            longest = shard_ends(total.size, nodes)[0][1]
            members = -(-longest // self.count)
            cycle = -(-longest // members)
            mine = np.arange(self.steps % cycle, end - begin, cycle) + begin
            places = shard.start + mine
            sums = np.zeros(members, np.float32)
            for rank in ranks:
                sent = self._rounded(self.waiting[rank, places], members, rank, self.steps * nodes + owner)
                self.waiting[rank, places] -= sent[: mine.size]
                sums = sums + sent
            if nodes > 1:
                rank = ranks[owner]
                sums[: mine.size] += self.errors[rank, places]
                rounded = self._rounded(sums, members, rank, self.steps, owner=True)
                self.errors[rank, places] = (sums - rounded)[: mine.size]
                sums = rounded
            total[mine] = sums[: mine.size]
        return total

    def _rounded(self, values: np.ndarray, members: int, rank: int, step: int, owner: bool = False) -> np.ndarray:
        """What receivers decode of values that are padded to a number of members."""
        padded = np.zeros(members, np.float32)
        padded[: values.size] = values
        if isinstance(self.coder, Plain):
            return reference.widen(reference.narrow(padded, DTYPES[self.coder.dtype]))
        if isinstance(self.coder, QSGD):
            seed = (rank << 48) + step
            return quantize_reference.reference(padded, -1 - seed if owner else seed, self.coder)[2]
        return magnitudes_reference.reference(padded, np.arange(members), (), self.coder)[2]
