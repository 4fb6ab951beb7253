"""Whole exchanges of all ranks in NumPy: slow, obvious, and the same bits as the library's.

A simulation knows all ranks at once. `step(vectors)` takes one vector [size] of each rank and returns the mean that
every rank must get; `residual` is [P, size] float32, that of each rank, where its elements lie in the vector. Dense
means are exact where sums are (small integers); else any order of additions lies within `tolerance(vectors)` of them.
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
Select = Callable[[np.ndarray, int, int], np.ndarray]  # (sum of a vector, how many, step) to indices


def same_bits(array: np.ndarray, expected: np.ndarray) -> None:
    """Asserts that two arrays are the same to the last bit; a zero's sign counts."""
    assert array.dtype == expected.dtype and array.shape == expected.shape
    np.testing.assert_array_equal(np.asarray(array, np.float64), np.asarray(expected, np.float64))
    assert array.tobytes() == expected.tobytes()


def integers(random: np.random.Generator, size: int, ranks: int) -> np.ndarray:
    """Small integers, divisible by P: all sums and the division are exact, and many magnitudes are equal."""
    return random.integers(-8, 9, size) * ranks


def floats(random: np.random.Generator, size: int, ranks: int) -> np.ndarray:
    """Of several magnitudes, with zeros."""
    return random.standard_normal(size) * 10.0 ** random.integers(-3, 3, size) * (random.random(size) < 0.9)


def constants(random: np.random.Generator, size: int, ranks: int) -> np.ndarray:
    """All equal."""
    return np.full(size, random.integers(-2, 3))


class Shape:
    """P ranks as nodes of `local_size`, numbered node by node."""

    def __init__(self, ranks: int, local_size: int):
        self.ranks = ranks
        self.local_size = local_size
        self.nodes = ranks // local_size


def kept(density: float, size: int) -> int:
    """The number of elements that are sent out of `size`: at least one, halves to even."""
    return max(1, int(np.rint(np.float64(density) * size)))


def shard_ends(size: int, count: int) -> list[tuple[int, int]]:
    """Begin and end of each shard: as long as the longest must be, until nothing is left."""
    longest = (size + count - 1) // count
    return [(min(number * longest, size), min((number + 1) * longest, size)) for number in range(count)]


def exact(total: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The selection of TopK."""
    return reference.exact(total, count)


def searched(samplings: int = 30, base: int = 0) -> Select:
    """The selection of MSTopK; the seed it is called with advances with each step."""
    return lambda total, count, seed: reference.mstopk(total, count, samplings, base + seed)


def sampled(share: float = 0.001, base: int = 0) -> Select:
    """The selection of SampledThreshold; the seed it is called with advances with each step."""
    return lambda total, count, seed: reference.sampled(total, count, share, base + seed)


class Held:
    """The selection of HeldThreshold: it remembers thresholds, in the order in which the vectors of a step come.

    Args:
        life: steps from one threshold to the next; before that many steps at each power of two.
        ends: where variables end in the whole vector, the last one but for that.
    """

    def __init__(self, life: int = 1000, ends: Sequence[int] = ()):
        self.life, self.ends = life, ends
        self._known: dict[tuple[int, int], tuple[int, np.float32]] = {}
        self._step, self._vector = -1, 0
        self.clamped: collections.Counter[int] = collections.Counter()  # of each vector of a step

    def select(self, total: np.ndarray, density: float, step: int, begin: int) -> np.ndarray:
        """The indices of what is sent of a shard, which begins at `begin`."""
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
        """What the density leaves when the rest, rounded down, is not sent; up to the precision of a float32."""
        return min(size, max(1, int(np.ceil(density * size * (1 - 2.0**-23)))))


def bucketed(count: int, bucket: int) -> Select:
    """The selection of BucketTopK, whatever share is asked for."""

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
        """4 P (eps sum |g| + the smallest number) of the narrower of the two dtypes, over P as the mean is."""
        limits = [ml_dtypes.finfo(DTYPES[dtype]) for dtype in (self.dtype, self.wire)]
        eps, least = (max(float(getattr(limit, name)) for limit in limits) for name in ("eps", "smallest_subnormal"))
        return 4 * (eps * np.sum([np.abs(vector.astype(np.float64)) for vector in vectors], axis=0) + least)


class Momentum(NamedTuple):
    """What `MomentumCorrection` does with a step's sum, as `MomentumRule` says it."""

    decay: float
    gain: float = 1.0
    nesterov: bool = False
    masking: bool = True


class Coding(NamedTuple):
    """Values in fewer bits, by a `OneBit` or `TwoBits`, of the elements of a vector that consists of some variables."""

    quantizer: Quantizer
    segments: tuple[Segment, ...] = ()

    def decoded(self, values: np.ndarray, indices: np.ndarray, begin: int) -> np.ndarray:
        """What the receivers make of values that are at `indices` of a shard, which begins at `begin`."""
        size = sum(segment.size for segment in self.segments)
        matrices = Spec(size, Grid.lone(), segments=self.segments).matrices if self.segments else ()
        return magnitudes_reference.reference(values, indices + begin, matrices, self.quantizer)[2]


class Flat:
    """Every rank sends what it selects of its own vector, for `topk` and `mstopk`.

    With momentum where that is set, and in codes where a coding is.
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
        """What all ranks have sent, added up in rank order."""
        total = np.zeros(self.residual.shape[1], np.float32)
        for rank, vector in enumerate(vectors):
            send([vector], self.residual[rank], self.velocity[rank], total, self, 0)
        self.steps += 1
        return total


class RoundedSums:
    """As `Flat`; then each rank rounds its piece of the sum to codes and keeps what that takes away."""

    def __init__(self, shape: Shape, size: int, select: Select, quantizer: QSGD, dtype="float32"):
        self.flat = Flat(shape, size, select, 1.0)
        self.quantizer, self.dtype = quantizer, dtype
        self.errors = np.zeros([shape.ranks, size], np.float32)

    @property
    def residual(self) -> np.ndarray:
        """Residuals, and beside them what a piece's rank has rounded off."""
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
    """Local rank j of every node sends what it selects of the node's sum of shard j, for `hitopk`."""

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
    """Selects from parts and residual, adds what arrives to `total`, and writes the new residual and velocity."""
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
    """Takes the parts into the velocity, and returns what goes into the selection."""
    decay, gain = np.float32(momentum.decay), np.float32(momentum.gain)
    gained = gain * reference.accumulate(parts, None)
    velocity[:] = decay * velocity + gained
    return decay * velocity + gained if momentum.nesterov else velocity.copy()


class Warming:
    """Another simulation, whose density changes: stages of (steps, density), after which its own holds."""

    def __init__(self, inner: Flat | Hierarchical, stages: Sequence[tuple[int, float]]):
        self.inner, self.stages, self._last, self._step = inner, stages, inner.density, 0

    @property
    def residual(self) -> np.ndarray:
        """The inner's."""
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
    """One simulation after another, all in float32; `stage` is set from outside, as the epoch is."""

    def __init__(self, stages: Sequence[Simulation], dtype: str = "float32"):
        self.stages = list(stages)
        self.dtype = dtype
        self.stage = self._holder = 0

    @property
    def residual(self) -> np.ndarray:
        """That of the stage that ran last."""
        return self.stages[self._holder].residual

    def step(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        rows = [vector.astype(np.float32) for vector in vectors]
        if self.stage != self._holder:
            rows = [row + residual for row, residual in zip(rows, self.residual, strict=True)]
            self.stages[self._holder].residual = np.zeros_like(self.residual)
            self._holder = self.stage
        return reference.narrow(self.stages[self.stage].step(rows), DTYPES[self.dtype])
