"""NumPy simulations of complete exchanges between all ranks: slow, simple, and equal to the library bit for bit.

A simulation holds the state of all ranks. `step(vectors)` takes one vector [size] per rank and returns the mean that
every rank must get; `residual` is [P, size] float32, one row per rank, with elements at their places in the vector.
Dense means are exact where sums are exact (small integers); otherwise, for any order of additions, the result lies
within `tolerance(vectors)` of the simulated mean.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from hvd_sparse.compression.quantizers import QSGD, Quantizer
from hvd_sparse.spec import Segment, Spec
from hvd_sparse.transport.communicator import Grid
from tests.gpu import reference
from tests.ops import magnitudes_reference, quantize_reference

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
Select = Callable[[np.ndarray, int, int], np.ndarray]  # (summed vector, count, step) -> indices


def same_bits(array: np.ndarray, expected: np.ndarray) -> None:
    """Asserts that two arrays are equal bit for bit, signs of zeros included."""
    assert array.dtype == expected.dtype and array.shape == expected.shape
    np.testing.assert_array_equal(np.asarray(array, np.float64), np.asarray(expected, np.float64))
    assert array.tobytes() == expected.tobytes()


def integers(random: np.random.Generator, size: int, ranks: int) -> np.ndarray:
    """Small integers, divisible by P: all sums and the division are exact, and many magnitudes are equal."""
    return random.integers(-8, 9, size) * ranks


def floats(random: np.random.Generator, size: int, ranks: int) -> np.ndarray:
    """Floats of several orders of magnitude, with zeros."""
    return random.standard_normal(size) * 10.0 ** random.integers(-3, 3, size) * (random.random(size) < 0.9)


def constants(random: np.random.Generator, size: int, ranks: int) -> np.ndarray:
    """A vector whose elements are all equal."""
    return np.full(size, random.integers(-2, 3))


class Shape:
    """P ranks on nodes of `local_size` ranks each, numbered node by node."""

    def __init__(self, ranks: int, local_size: int):
        self.ranks = ranks
        self.local_size = local_size
        self.nodes = ranks // local_size


def kept(density: float, size: int) -> int:
    """The number of elements sent out of `size`: at least one; halves round to even."""
    return max(1, int(np.rint(np.float64(density) * size)))


def shard_ends(size: int, count: int) -> list[tuple[int, int]]:
    """Begin and end of each shard: all have the length of the longest until the elements run out."""
    longest = (size + count - 1) // count
    return [(min(number * longest, size), min((number + 1) * longest, size)) for number in range(count)]


def exact(total: np.ndarray, count: int, seed: int) -> np.ndarray:
    """TopK's selection."""
    return reference.exact(total, count)


def searched(samplings: int = 30, base: int = 0) -> Select:
    """MSTopK's selection; the seed in each call advances by one per step."""
    return lambda total, count, seed: reference.mstopk(total, count, samplings, base + seed)


def sampled(share: float = 0.001, base: int = 0) -> Select:
    """SampledThreshold's selection; the seed in each call advances by one per step."""
    return lambda total, count, seed: reference.sampled(total, count, share, base + seed)


class Held:
    """HeldThreshold's selection; it stores thresholds by the order in which the vectors of a step are passed.

    Args:
        life: steps between two thresholds; during the first `life` steps a new one at each power of two.
        ends: where variables end in the whole vector; the end of the last may be left out.
    """

    def __init__(self, life: int = 1000, ends: Sequence[int] = ()):
        self.life, self.ends = life, ends
        self._known: dict[tuple[int, int], tuple[int, np.float32]] = {}
        self._step, self._vector = -1, 0
        self.clamped: collections.Counter[int] = collections.Counter()  # for each vector of a step

    def select(self, total: np.ndarray, density: float, step: int, begin: int) -> np.ndarray:
        """The indices of the elements sent from a shard that begins at `begin`."""
        self._vector = self._vector + 1 if step == self._step else 0
        self._step, found, last_end = step, [], 0
        inside = [end - begin for end in self.ends if 0 < end - begin < total.size]
        for number, end in enumerate([*inside, total.size]):
            key, count = (self._vector, number), self.kept(density, end - last_end)
            last, threshold = self._known.get(key, (0, None))
            due = step % self.life == 0 or (step < self.life and step.bit_count() == 1) or count != last
            chosen, threshold, acted = reference.held(total[last_end:end], count, None if due else threshold)
            self._known[key] = count, threshold
            self.clamped[self._vector] += acted
            found.append(last_end + chosen)
            last_end = end
        return np.concatenate(found)

    @staticmethod
    def kept(density: float, size: int) -> int:
        """`size` minus the number not sent, which is rounded down; accurate to the precision of a float32."""
        return min(size, max(1, int(np.ceil(density * size * (1 - 2.0**-23)))))


def bucketed(count: int, bucket: int) -> Select:
    """BucketTopK's selection, which ignores the count it is called with."""

    def select(total: np.ndarray, _, seed: int) -> np.ndarray:
        pieces = [total[begin : begin + bucket] for begin in range(0, total.size, bucket)]
        chosen = [reference.exact(piece, count) + number * bucket for number, piece in enumerate(pieces)]
        return np.concatenate(chosen).astype(np.int64)

    return select


def divided(total: np.ndarray, ranks: int, dtype: str) -> np.ndarray:
    """A float32 sum over all ranks, divided once, in the vector's dtype."""
    return reference.narrow(total / np.float32(ranks), DTYPES[dtype])


class Dense:
    """The mean of all vectors, for `dense` and `torus2d`."""

    def __init__(self, shape: Shape, size: int, dtype: str = "float32", wire: str = "float32"):
        self.shape, self.dtype, self.wire = shape, dtype, wire
        self.residual = np.zeros([shape.ranks, size], np.float32)

    def step(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        total = np.sum([vector.astype(np.float64) for vector in vectors], axis=0)
        return divided(total.astype(np.float32), self.shape.ranks, self.dtype)

    def tolerance(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        """4 P (eps sum |g| + the smallest number) of the less precise of the two dtypes, divided by P for the mean."""
        limits = [ml_dtypes.finfo(DTYPES[dtype]) for dtype in (self.dtype, self.wire)]
        eps, least = (max(float(getattr(limit, name)) for limit in limits) for name in ("eps", "smallest_subnormal"))
        return 4 * (eps * np.sum([np.abs(vector.astype(np.float64)) for vector in vectors], axis=0) + least)


class Momentum(NamedTuple):
    """What `MomentumCorrection` does with a step's sum; the fields are those of `MomentumRule`."""

    decay: float
    gain: float = 1.0
    nesterov: bool = False
    masking: bool = True


class Coding(NamedTuple):
    """Coding of the selected values of a vector, with the given variables, by `OneBit` or `TwoBits`."""

    quantizer: Quantizer
    segments: tuple[Segment, ...] = ()

    def decoded(self, values: np.ndarray, indices: np.ndarray, begin: int) -> np.ndarray:
        """The values that receivers decode, for values at `indices` of a shard that begins at `begin`."""
        size = sum(segment.size for segment in self.segments)
        matrices = Spec(size, Grid.lone(), segments=self.segments).matrices if self.segments else ()
        return magnitudes_reference.reference(values, indices + begin, matrices, self.quantizer)[2]


class Flat:
    """Every rank sends a selection of its own vector, for `topk` and `mstopk`.

    Uses momentum and coded values if `momentum` and `coding` are set.
    """

    def __init__(self, shape: Shape, size: int, select: Select | Held, density: float, dtype="float32", wire="float32"):
        self.shape, self.select, self.density, self.dtype, self.wire = shape, select, density, dtype, wire
        self.residual = np.zeros([shape.ranks, size], np.float32)
        self.velocity = np.zeros([shape.ranks, size], np.float32)
        self.momentum: Momentum | None = None
        self.coding: Coding | None = None
        self.steps = 0

    def step(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        return divided(self.total(vectors), self.shape.ranks, self.dtype)

    def total(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        """The sum of what all ranks send, added up in rank order."""
        total = np.zeros(self.residual.shape[1], np.float32)
        for rank, vector in enumerate(vectors):
            send([vector], self.residual[rank], self.velocity[rank], total, self, 0)
        self.steps += 1
        return total


class RoundedSums:
    """As `Flat`, but each rank then rounds its piece of the sum to codes and keeps the rounding error."""

    def __init__(self, shape: Shape, size: int, select: Select, quantizer: QSGD, dtype="float32"):
        self.flat = Flat(shape, size, select, 1.0)
        self.quantizer, self.dtype = quantizer, dtype
        self.errors = np.zeros([shape.ranks, size], np.float32)

    @property
    def residual(self) -> np.ndarray:
        """The residuals plus the rounding errors that each rank keeps for its piece."""
        return self.flat.residual + self.errors

    @residual.setter
    def residual(self, value: np.ndarray) -> None:
        self.flat.residual, self.errors[:] = value, 0

    def step(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        ranks, size = self.flat.residual.shape
        step = self.flat.steps
        total = self.flat.total(vectors)
        for rank in range(ranks if ranks > 1 else 0):
            piece = slice(rank * size // ranks, (rank + 1) * size // ranks)
            exact_sums = total[piece] + self.errors[rank, piece]
            *_, decoded = quantize_reference.reference(exact_sums, step * ranks + rank, self.quantizer)
            self.errors[rank, piece] = exact_sums - decoded
            total[piece] = decoded
        return divided(total, ranks, self.dtype)


class Hierarchical:
    """Local rank j of every node sends a selection of the node's sum of shard j, for `hitopk`."""

    def __init__(self, shape: Shape, size: int, select: Select | Held, density: float, dtype="float32", wire="float32"):
        self.shape, self.select, self.density, self.dtype, self.wire = shape, select, density, dtype, wire
        self.residual = np.zeros([shape.ranks, size], np.float32)
        self.velocity = np.zeros([shape.ranks, size], np.float32)
        self.momentum: Momentum | None = None
        self.coding: Coding | None = None
        self.steps = 0

    def step(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        total = np.zeros(self.residual.shape[1], np.float32)
        ends = shard_ends(total.size, self.shape.local_size)
        for node in range(self.shape.nodes):
            first = node * self.shape.local_size
            for local, (begin, end) in enumerate(ends):
                if begin == end:
                    continue
                parts = [vector[begin:end] for vector in vectors[first : first + self.shape.local_size]]
                rank = first + local
                residual, velocity = self.residual[rank, begin:end], self.velocity[rank, begin:end]
                send(parts, residual, velocity, total[begin:end], self, begin)
        self.steps += 1
        return divided(total, self.shape.ranks, self.dtype)


def send(
    parts: Sequence[np.ndarray],
    residual: np.ndarray,
    velocity: np.ndarray,
    total: np.ndarray,
    sender: Flat | Hierarchical,
    begin: int,
) -> None:
    """Selects from parts and residual, adds what is received to `total`, and writes the new residual and velocity."""
    if sender.momentum is not None:
        parts = [moved(parts, velocity, sender.momentum)]
    summed = reference.accumulate(parts, residual)
    if isinstance(sender.select, Held):
        indices = sender.select.select(summed, sender.density, sender.steps, begin)
    else:
        indices = sender.select(summed, kept(sender.density, summed.size), sender.steps)
    values, residual[:] = reference.feedback(parts, residual, indices, DTYPES[sender.wire])
    if sender.coding is not None:
        decoded = sender.coding.decoded(values, indices, begin)
        residual[indices] = residual[indices] + (values - decoded)
        values = decoded
    total[indices] += reference.widen(values)
    if sender.momentum is not None and sender.momentum.masking and indices.size < summed.size:
        velocity[indices] = 0.0


def moved(parts: Sequence[np.ndarray], velocity: np.ndarray, momentum: Momentum) -> np.ndarray:
    """Adds the parts to the velocity and returns the vector to select from."""
    decay, gain = np.float32(momentum.decay), np.float32(momentum.gain)
    gained = gain * reference.accumulate(parts, None)
    velocity[:] = decay * velocity + gained
    return decay * velocity + gained if momentum.nesterov else velocity.copy()


class Warming:
    """Changes another simulation's density: stages of (steps, density), then the simulation's original density."""

    def __init__(self, inner: Flat | Hierarchical, stages: Sequence[tuple[int, float]]):
        self.inner, self.stages, self._last, self._step = inner, stages, inner.density, 0

    @property
    def residual(self) -> np.ndarray:
        """The inner simulation's residuals."""
        return self.inner.residual

    @residual.setter
    def residual(self, value: np.ndarray) -> None:
        self.inner.residual = value

    def step(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        ends = np.cumsum([steps for steps, _ in self.stages])
        reached = int(np.sum(self._step >= ends))
        self.inner.density = self.stages[reached][1] if reached < len(self.stages) else self._last
        self._step += 1
        return self.inner.step(vectors)


Simulation = Dense | Flat | RoundedSums | Hierarchical | Warming


class Stages:
    """Several simulations, one used at a time, all in float32; `stage` is set by the caller, as the epoch is."""

    def __init__(self, stages: Sequence[Simulation], dtype: str = "float32"):
        self.stages = list(stages)
        self.dtype = dtype
        self.stage = self._holder = 0

    @property
    def residual(self) -> np.ndarray:
        """The residuals of the stage that ran last."""
        return self.stages[self._holder].residual

    def step(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        rows = [vector.astype(np.float32) for vector in vectors]
        if self.stage != self._holder:
            rows = [row + residual for row, residual in zip(rows, self.residual, strict=True)]
            self.stages[self._holder].residual = np.zeros_like(self.residual)
            self._holder = self.stage
        return reference.narrow(self.stages[self.stage].step(rows), DTYPES[self.dtype])
