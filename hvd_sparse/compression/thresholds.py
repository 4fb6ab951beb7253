"""What one rank sends of a vector: what exceeds a threshold, as many elements as that may be."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.compression.base import Compressor, Selection
from hvd_sparse.compression.selectors import Density, Steps, check_density, check_wire_dtype, or_zeros, slices_of
from hvd_sparse.spec import Spec


@dataclasses.dataclass(frozen=True)
class SampledThreshold(Compressor):
    """What exceeds the threshold that a random sample gives (gradient dropping, Aji and Heafield 2017, section 3).

    With k as `TopK` has it, the threshold is the magnitude in the sample that so many exceed as k would of the whole.
    How many then exceed it differs between ranks and steps. Where fewer than k / 2 do, or more than 2 k, the sample has
    misled, and the k elements of largest magnitude are sent.

    Attributes:
        density: as in `TopK`.
        wire_dtype: as in `TopK`.
        sample: the share of the vector that is drawn, in (0, 1]; of a short vector at least 1,024 elements, or all.
        seed: of what is drawn; it advances with the step and differs between vectors.
    """

    disk_name = "SampledThreshold"
    counts_differ = True
    density: Density
    wire_dtype: str = "float32"
    sample: float = 0.001
    seed: int = 0

    def __post_init__(self):
        check_density(self.density)
        check_wire_dtype(self.wire_dtype)
        if not 0.0 < self.sample <= 1.0:
            raise ValueError(f"Expected a sample in (0, 1], the share of the vector that is drawn, got {self.sample}.")

    def create(self, spec: Spec) -> tf.Module:
        return Steps(spec)

    def count(self, size):
        return None

    def at_density(self, density):
        return dataclasses.replace(self, density=density)

    def compress(self, parts, state, residual=None):
        values, indices, new_residual, culprit = ops.library().hvd_sparse_feedback_sampled(
            parts=parts,
            residual=or_zeros(residual, parts),
            k=state.kept(self.density),
            seed=state.seed(self.seed),
            sample=self.sample,
            wire_dtype=tf.as_dtype(self.wire_dtype),
        )
        return Selection(slices_of(values, indices, state.size), new_residual, culprit, state.next_step())
