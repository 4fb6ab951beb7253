"""Selection by a sampled threshold: all elements that exceed it are sent, however many there are."""

from __future__ import annotations

import dataclasses
import itertools

import tensorflow as tf

from hvd_sparse import ops
from hvd_sparse.compression.base import Compressor, Selection
from hvd_sparse.compression.selection import (
    Density,
    Steps,
    check_density,
    check_wire_dtype,
    kept_count,
    or_zeros,
    slices_of,
)
from hvd_sparse.spec import UNLESS_DEFAULT, Spec


@dataclasses.dataclass(frozen=True)
class SampledThreshold(Compressor):
    """Selects what exceeds a threshold from a random sample (gradient dropping, Aji and Heafield 2017, section 3).

    With k as in `TopK`, the threshold is the magnitude that the share k / size of the sample exceeds. The number of
    elements that exceed it differs between ranks and steps. If it is less than k / 2 or more than 2 k, the sample was
    misleading, and the k elements of largest magnitude are sent.

    Attributes:
        density: as in `TopK`.
        wire_dtype: as in `TopK`.
        sample: the share of the vector that is drawn, in (0, 1]; at least 1,024 elements, or all of a shorter vector.
        seed: seed of the sample; it advances with the step and differs between vectors.
        scope: "global" for one threshold for the vector or shard; or "variable" for one per variable in it, each with
            its own sample and its own k, at least 1: the paper's local thresholds (4 and 5.2), for variables whose
            gradients differ in scale.
    """

    disk_name = "SampledThreshold"
    counts_differ = True
    density: Density
    wire_dtype: str = "float32"
    sample: float = 0.001
    seed: int = 0
    scope: str = dataclasses.field(default="global", metadata=UNLESS_DEFAULT)

    def __post_init__(self):
        check_density(self.density)
        check_wire_dtype(self.wire_dtype)
        if not 0.0 < self.sample <= 1.0:
            raise ValueError(f"Expected a sample in (0, 1], the share of the vector that is drawn, got {self.sample}.")
        if self.scope not in ("global", "variable"):
            raise ValueError(f"Expected a scope of 'global' or 'variable', got {self.scope!r}.")

    def create(self, spec: Spec) -> tf.Module:
        return ByVariable(spec) if self.scope == "variable" else _OfAll(spec)

    def count(self, size):
        return None

    def expected(self, size):
        return None if callable(self.density) else kept_count(self.density, size)

    def at_density(self, density):
        return dataclasses.replace(self, density=density)

    def compress(self, parts, state, residual=None):
        values, indices, new_residual, culprit = ops.library().hvd_sparse_feedback_sampled(
            parts=parts,
            residual=or_zeros(residual, parts),
            k=state.kept(self.density),
            seed=state.seed(self.seed),
            sample=self.sample,
            ends=list(state.ends),
            wire_dtype=tf.as_dtype(self.wire_dtype),
        )
        return Selection(slices_of(values, indices, state.size), new_residual, culprit, state.next_step())


class _OfAll(Steps):
    """The state with one threshold for all."""

    ends: tuple[int, ...] = ()


class ByVariable(Steps):
    """The state with one threshold per variable: where each variable ends in the vector, and its k."""

    def __init__(self, spec: Spec):
        super().__init__(spec)
        self.sizes = [place.size for place in spec.places] or [spec.size]
        self.ends = tuple(itertools.accumulate(self.sizes))

    def kept(self, density: Density) -> tf.Tensor:
        """k of each variable, [variables] int32."""
        if not callable(density):
            return tf.constant([kept_count(density, size) for size in self.sizes], tf.int32)
        share = tf.cast(density(self.step), tf.float64)
        counts = tf.cast(tf.round(share * tf.constant(self.sizes, tf.float64)), tf.int32)
        return tf.clip_by_value(counts, 1, tf.constant(self.sizes, tf.int32))
