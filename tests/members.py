"""Tables of the compressors, collectives and aggregators under test.

A new one needs one row here; every test suite of its kind then runs on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from hvd_sparse import collectives, recipes
from hvd_sparse.aggregators import Aggregator, ByNodes, Hierarchical
from hvd_sparse.compression.base import Coded, Compressor
from hvd_sparse.compression.block import Block
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.held import HeldThreshold
from hvd_sparse.compression.momentum import MomentumCorrection
from hvd_sparse.compression.quantizers import QSGD, OneBit, Quantizer, TwoBits, Where
from hvd_sparse.compression.selectors import BucketTopK, MSTopK, Quantized, TopK
from hvd_sparse.compression.thresholds import SampledThreshold
from hvd_sparse.compression.updates import LocalSlots, LocalUpdates
from hvd_sparse.spec import LocalOptimizer, Spec, parts
from hvd_sparse.transport.communicator import Grid
from tests import simulated_blocks, simulation
from tests.simulation import Momentum, Shape

MOMENTUM = 0.5

COMPRESSORS: dict[str, Callable[[float, str], Compressor]] = {
    "TopK": TopK,
    "MSTopK": MSTopK,
    "MSTopK, 3 samplings": lambda density, wire: MSTopK(density, wire, samplings=3, seed=7),
    "SampledThreshold": SampledThreshold,
    "SampledThreshold by variable": lambda density, wire: SampledThreshold(density, wire, scope="variable"),
    "ErrorFeedback(SampledThreshold)": lambda density, wire: ErrorFeedback(SampledThreshold(density, wire)),
    "HeldThreshold": HeldThreshold,
    "ErrorFeedback(HeldThreshold)": lambda density, wire: ErrorFeedback(HeldThreshold(density, wire, life=3)),
    "Quantized(HeldThreshold)": lambda density, wire: Quantized(HeldThreshold(density, wire, life=1), QSGD(4)),
    "Block": lambda density, wire: Block(_count_of(density), wire),
    "ErrorFeedback(Block)": lambda density, wire: ErrorFeedback(Block(_count_of(density), wire)),
    "ErrorFeedback(Block), Quantized": lambda density, wire: ErrorFeedback(Block(_count_of(density), wire, TwoBits())),
    "ErrorFeedback(TopK)": lambda density, wire: ErrorFeedback(TopK(density, wire)),
    "ErrorFeedback(MSTopK)": lambda density, wire: ErrorFeedback(MSTopK(density, wire)),
    "BucketTopK": lambda density, wire: BucketTopK(*_in_buckets(density, 100), wire),
    "ErrorFeedback(BucketTopK)": lambda density, wire: ErrorFeedback(BucketTopK(*_in_buckets(density, 100), wire)),
    "MomentumCorrection": lambda density, wire: MomentumCorrection(ErrorFeedback(TopK(density, wire)), momentum=0.0),
    "LocalUpdates": lambda density, wire: LocalUpdates(ErrorFeedback(TopK(density, wire))),
    "Quantized(TopK)": lambda density, wire: Quantized(TopK(density, wire), QSGD(4)),
    "Quantized(SampledThreshold)": lambda density, wire: Quantized(SampledThreshold(density, wire), TwoBits()),
    "ErrorFeedback(Quantized(SampledThreshold))": lambda density, wire: ErrorFeedback(
        Quantized(SampledThreshold(density, wire), OneBit("threshold"))
    ),
    "Quantized(TopK, OneBit)": lambda density, wire: Quantized(TopK(density, wire), OneBit("column")),
    "ErrorFeedback(Quantized(MSTopK))": lambda density, wire: ErrorFeedback(
        Quantized(MSTopK(density, wire), QSGD(2, bucket=16))
    ),
}
# The others keep k elements of each bucket, or one of a number of blocks.
BY_DENSITY = [name for name in COMPRESSORS if "BucketTopK" not in name and "Block" not in name]
WITH_TIES = [name for name in COMPRESSORS if "HeldThreshold" in name]  # send all of equal magnitude, but no zeros
ROUNDED = [name for name in COMPRESSORS if "Quantized" in name]  # these send codes instead of values in the wire dtype


class _Descent(LocalSlots):
    """Gradient descent with a learning rate of 1 and no slots."""

    def update(self, gradient, ahead):
        return gradient, []


def alone(size: int) -> Spec:
    """A spec of one rank, for compressors; their local optimizer, if any, subtracts the gradient from the weights."""
    return Spec(size, Grid.lone(), optimizer=LocalOptimizer(lambda spec: _Descent(spec, {})))


class Bytes(Quantizer):
    """Copies values unchanged, so that decoded values are exact to the bit; its one scale is not used."""

    def code_bytes(self, count):
        return 4 * count

    def scale_count(self, count):
        return 1

    def encode(self, values, seed, where=None):
        return tf.reshape(tf.bitcast(values, tf.uint8), [-1]), tf.ones([1])

    def decode(self, codes, scales, count, where=None):
        return tf.bitcast(tf.reshape(codes, [count, 4]), tf.float32)


def _coded_values(slices: tf.IndexedSlices, quantizer: Quantizer) -> Coded:
    return Coded(*quantizer.encode(tf.cast(slices.values, tf.float32), 0, Where(slices.indices)), quantizer)


def _as_before(found: tf.IndexedSlices, dtype: tf.DType) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.cast(found.values, dtype), found.indices, found.dense_shape)


def _counted(slices, communicator, counts=None):
    return collectives.allgather_counted(slices, tf.constant(False), communicator)[0]


def _coded_by_count(slices, communicator, counts=None):
    coded = _coded_values(slices, Bytes())
    found, _ = collectives.allgather_coded_counted(slices, coded, tf.constant(False), communicator)
    return _as_before(found, slices.values.dtype)


def _coded_alike(slices, communicator):
    coded = _coded_values(slices, Bytes())
    return _as_before(collectives.allgather_coded(slices, coded, communicator), slices.values.dtype)


# All-gathers of contributions; OF_EQUAL_COUNTS also has one that needs the same count on all ranks.
COLLECTIVES = {
    "allgather_sum": collectives.allgather_sum,
    "allgather_counted": _counted,
    "allgather_coded_counted": _coded_by_count,
}
OF_EQUAL_COUNTS = {**COLLECTIVES, "allgather_coded": _coded_alike}


class Recipe(NamedTuple):
    """One aggregator and how to simulate it.

    Attributes:
        make: builds the aggregator from (density, wire dtype).
        simulate: builds its simulation from (shape, size, density, dtype of the vector, wire dtype).
        sparse: whether it sends only part of the vector; results must then equal the simulation's bit for bit.
        wires: whether values travel in the wire dtype; otherwise they travel as float32 or as codes.
        exact: whether sums of integers are exact; with codes of a few bits they are not.
        momentum: whether it sends a momentum instead of the input itself.
        first: maps the density to the density of the first exchange.
    """

    make: Callable[[float, str], Aggregator]
    simulate: Callable[[Shape, int, float, str, str], simulation.Simulation]
    sparse: bool
    wires: bool = True
    exact: bool = True
    momentum: bool = False
    first: Callable[[float], float] = lambda density: density


def _dense(shape, size, density, dtype, wire):
    return simulation.Dense(shape, size, dtype, wire)


def _selecting(kind, select):
    return lambda shape, size, density, dtype, wire: kind(shape, size, select, density, dtype, wire)


def _in_buckets(density: float, bucket: int) -> tuple[int, int]:
    """The k of each bucket for a density, at least 1, and the bucket size."""
    return max(1, round(density * bucket)), bucket


def _flat_buckets(shape, size, density, dtype, wire):
    select = simulation.bucketed(*_in_buckets(density, 20))
    return simulation.Flat(shape, size, select, density, dtype, "float32")


def _rounded_buckets(shape, size, density, dtype, wire):
    select = simulation.bucketed(*_in_buckets(density, 20))
    return simulation.RoundedSums(shape, size, select, QSGD(4), dtype)


def _coded(kind, quantizer: Quantizer, share: float = 0.001, seed: int = 0):
    def simulated(shape, size, density, dtype, wire):
        made = kind(shape, size, simulation.sampled(share, seed), density, dtype)
        made.coding = simulation.Coding(quantizer)
        return made

    return simulated


def _dropping(quantizer: Quantizer, simulated, **options) -> Recipe:
    return Recipe(
        lambda density, wire: recipes.dropping(density, quantizer=quantizer, **options), simulated, True, False, False
    )


def _count_of(density: float) -> int:
    return max(1, round(1 / density))


def _blocks(bits: int | None) -> Recipe:
    def made(density, wire):
        return recipes.blocks(_count_of(density), bits, "float32" if bits else wire)

    def simulated(shape, size, density, dtype, wire):
        coder = next(part for part in parts(made(density, wire)) if isinstance(part, Block)).coder
        return simulated_blocks.Blocks(shape, size, _count_of(density), coder, dtype)

    return Recipe(made, simulated, True, wires=bits is None, exact=bits is None)


def _by_nodes() -> Recipe:
    many = _blocks(None)

    def made(density, wire):
        return ByNodes(((1, recipes.hitopk(density, wire)), (3, many.make(density, wire))))

    def simulated(shape, *arguments):
        few = _selecting(simulation.Hierarchical, simulation.searched())
        return (few if shape.nodes < 3 else many.simulate)(shape, *arguments)

    return Recipe(made, simulated, True)


def _dct(shape, size, density, dtype, wire):
    return simulation.Flat(shape, size, simulation.Held(life=2), density, dtype, wire)


def _with_momentum(simulate, momentum: Momentum, stages=None):
    def simulated(shape, size, density, dtype, wire):
        made = simulate(shape, size, density, dtype, "float32" if stages else wire)
        made.momentum = momentum
        return simulation.Warming(made, stages(density)) if stages else made

    return simulated


def _dgc(density: float) -> list[tuple[int, float]]:
    return [(1, each) for each in (0.25, 0.0625, 0.015625) if each > density]


def _four(density: float) -> float:
    return 1.0 if density == 1.0 else min(0.9, 4 * density)


def _twice(density: float) -> float:
    return 1.0 if density == 1.0 else min(0.9, 2 * density)


def _warming(simulate, densities):
    def simulated(shape, size, density, dtype, wire):
        stages = [(1, each(density)) for each in densities]
        return simulation.Warming(simulate(shape, size, density, dtype, "float32"), stages)

    return simulated


AGGREGATORS: dict[str, Recipe] = {
    "dense": Recipe(lambda density, wire: recipes.dense(wire), _dense, False),
    "mean": Recipe(lambda density, wire: recipes.mean(wire), _dense, False),
    "torus2d": Recipe(lambda density, wire: recipes.torus2d(wire), _dense, False),
    "topk": Recipe(recipes.topk, _selecting(simulation.Flat, simulation.exact), True),
    "mstopk": Recipe(recipes.mstopk, _selecting(simulation.Flat, simulation.searched()), True),
    "hitopk": Recipe(recipes.hitopk, _selecting(simulation.Hierarchical, simulation.searched()), True),
    "hitopk-seed5": Recipe(
        lambda density, wire: recipes.hitopk(density, wire, samplings=4, seed=5),
        _selecting(simulation.Hierarchical, simulation.searched(4, 5)),
        True,
    ),
    "dropping": Recipe(recipes.dropping, _selecting(simulation.Flat, simulation.sampled()), True),
    "dropping-by_nodes": Recipe(
        lambda density, wire: Hierarchical(recipes.dropping(density, wire, sample=0.1, seed=3)),
        _selecting(simulation.Hierarchical, simulation.sampled(0.1, 3)),
        True,
    ),
    "dropping-one_bit": _dropping(OneBit("column"), _coded(simulation.Flat, OneBit("column"))),
    "dropping-one_bit_of_all": _dropping(
        OneBit("global"), _coded(simulation.Flat, OneBit("global"), 0.1, 3), sample=0.1, seed=3
    ),
    "dropping-two_bits": _dropping(TwoBits(), _coded(simulation.Flat, TwoBits())),
    "dropping-by_variable": Recipe(
        lambda density, wire: recipes.dropping(density, wire, scope="variable"),
        _selecting(simulation.Flat, simulation.sampled()),
        True,
    ),
    "dropping-one_bit_by_nodes": Recipe(
        lambda density, wire: Hierarchical(recipes.dropping(density, quantizer=OneBit("threshold"))),
        _coded(simulation.Hierarchical, OneBit("threshold")),
        True,
        False,
        False,
    ),
    "dct": Recipe(lambda density, wire: recipes.dct(1.0 - density, 2, wire), _dct, True),
    "sparcml": Recipe(
        lambda density, wire: recipes.sparcml(density, collective="split_allgather"),
        lambda shape, size, density, dtype, wire: simulation.Flat(shape, size, simulation.exact, density, dtype),
        True,
        wires=False,
    ),
    "blocks": _blocks(None),
    "blocks-one_bit": _blocks(1),
    "blocks-two_bits": _blocks(2),
    "blocks-four_bits": _blocks(4),
    "blocks-on_many_nodes": _by_nodes(),
    "sparcml_buckets": Recipe(
        lambda density, wire: recipes.sparcml_buckets(*_in_buckets(density, 20)), _rounded_buckets, True, False, False
    ),
    "sparcml_buckets-float32": Recipe(
        lambda density, wire: recipes.sparcml_buckets(*_in_buckets(density, 20), bits=None, collective="dynamic"),
        _flat_buckets,
        True,
        wires=False,
    ),
    "dense_below": Recipe(
        lambda density, wire: recipes.dense_below(recipes.hitopk(density, wire), 1),
        _selecting(simulation.Hierarchical, simulation.searched()),
        True,
    ),
    "momentum_corrected": Recipe(
        lambda density, wire: recipes.momentum_corrected(recipes.hitopk(density, wire), MOMENTUM),
        _with_momentum(_selecting(simulation.Hierarchical, simulation.searched()), Momentum(MOMENTUM)),
        True,
        momentum=True,
    ),
    "momentum_corrected-unmasked": Recipe(
        lambda density, wire: recipes.momentum_corrected(recipes.topk(density, wire), MOMENTUM, masking=False),
        _with_momentum(_selecting(simulation.Flat, simulation.exact), Momentum(MOMENTUM, masking=False)),
        True,
        momentum=True,
    ),
    "warmup": Recipe(
        lambda density, wire: recipes.warmup(recipes.hitopk(density), 1, [_four(density), _twice(density)]),
        _warming(_selecting(simulation.Hierarchical, simulation.searched()), [_four, _twice]),
        True,
        wires=False,
        first=_four,
    ),
    "dgc": Recipe(
        lambda density, wire: recipes.dgc(density, 1, MOMENTUM),
        _with_momentum(_selecting(simulation.Flat, simulation.exact), Momentum(MOMENTUM), _dgc),
        True,
        wires=False,
        momentum=True,
        first=lambda density: max(0.25, density),
    ),
    "momentum_corrected-warmup": Recipe(
        lambda density, wire: recipes.warmup(
            recipes.momentum_corrected(recipes.hitopk(density), MOMENTUM), 1, [_four(density), _twice(density)]
        ),
        _with_momentum(
            _selecting(simulation.Hierarchical, simulation.searched()),
            Momentum(MOMENTUM),
            lambda density: [(1, _four(density)), (1, _twice(density))],
        ),
        True,
        wires=False,
        momentum=True,
        first=_four,
    ),
    # `auto` chooses by measuring this machine; whichever recipe it chooses, the results must be those of the row.
    "auto-dense": Recipe(
        lambda density, wire: recipes.auto(density, ["dense", "torus2d"], wire, budget=0.0), _dense, False
    ),
    "auto-hitopk": Recipe(
        lambda density, wire: recipes.auto(density, ["hitopk"], wire),
        _selecting(simulation.Hierarchical, simulation.searched()),
        True,
    ),
}


def switching(names: list[str], density: float, wire: str) -> Aggregator:
    """A schedule of recipes, one per epoch."""
    return recipes.schedule([(epoch, AGGREGATORS[name].make(density, wire)) for epoch, name in enumerate(names)])


def simulate_switching(
    names: list[str], shape: Shape, size: int, density: float, dtype: str, wire: str
) -> simulation.Stages:
    """The simulation of `switching`; its stages compute in float32, whatever the vector's dtype."""
    stages = [AGGREGATORS[name].simulate(shape, size, density, "float32", wire) for name in names]
    return simulation.Stages(stages, dtype)
