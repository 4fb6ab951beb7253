"""The kernels of ops/lars through ctypes: the same bits for all instruction sets, thread counts and ranges."""

import itertools
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tests.lars import native, passes
from tests.ops import sanitizers
from tests.ops.native import Parallel
from tests.simulation import same_bits

OPS = Path(__file__).resolve().parents[2] / "ops"
SHAPES = [(300_001,), (1,), (0,), (65536,), (7, 9), (200_000,), (17,), (4096,), (4097,), (131_073,)]
RULE = passes.LambRule(beta_1=0.9, beta_2=0.999, epsilon=1e-6, step=7)
THREADS = [1, 2, 3, 7]


def problem(dtype, slots, shapes=SHAPES, seed=1):
    """Weights, slots and gradients; the second slot has no negative elements, like squares."""
    random = np.random.default_rng(seed)
    made = [passes.tensors(random, shapes, [passes.DTYPES[dtype]]) for _ in range(2 + slots)]
    if slots == 2:
        made[2] = [np.abs(array) for array in made[2]]
    return made[0], made[1:-1], made[-1]


def numbers(count, seed=2):
    random = np.random.default_rng(seed)
    return random.uniform(0.01, 2, count), random.choice([0, 1e-4, 0.01], count)


def copies(arrays):
    return [array.copy() for array in arrays]


def blocks(arrays):
    return sum(-(-array.size // passes.BLOCK) for array in arrays)


EACH_ISA = pytest.mark.parametrize("isa", native.isas())
EACH_DTYPE = pytest.mark.parametrize(
    "dtype",
    [name if "float32" in name else pytest.param(name, marks=pytest.mark.thorough) for name in passes.DTYPES],
)


def test_blocks_are_cut_as_documented():
    assert native.library().lars_block_size() == passes.BLOCK


@EACH_DTYPE
@EACH_ISA
def test_sums_are_the_same_bits(isa, dtype):
    weights, _, gradients = problem(dtype, 0)
    expected = np.stack([passes.partials(weights), passes.partials(gradients)], axis=1)
    layers = native.layers(weights, gradients)
    with native.isa(isa):
        for threads in THREADS:
            found, status = native.lars_partials(layers, 0, blocks(weights), Parallel(threads))
            assert status == 0
            same_bits(found, expected)


@EACH_DTYPE
@EACH_ISA
@pytest.mark.parametrize("nesterov", [False, True])
def test_updates_of_lars_are_the_same_bits(isa, dtype, nesterov):
    weights, slots, gradients = problem(dtype, 1)
    scales, decays = numbers(len(weights))
    inputs = zip(weights, slots[0], gradients, scales, decays, strict=True)
    expected = [passes.lars_step(*each, 0.9, nesterov) for each in inputs]
    with native.isa(isa):
        for threads in THREADS:
            held, moving = copies(weights), copies(slots[0])
            layers = native.layers(held, gradients, [moving], scales, decays)
            assert native.lars_update(layers, 0.9, nesterov, Parallel(threads)) == 0
            for number, (weight, velocity) in enumerate(expected):
                same_bits(held[number], weight)
                same_bits(moving[number], velocity)


@EACH_DTYPE
@EACH_ISA
def test_passes_of_lamb_are_the_same_bits(isa, dtype):
    weights, slots, gradients = problem(dtype, 2)
    scales, decays = numbers(len(weights))
    inputs = list(zip(weights, *slots, gradients, strict=True))
    directions = [passes.lamb_direction(*each, decay, RULE)[0] for each, decay in zip(inputs, decays, strict=True)]
    sums = np.stack([passes.partials(weights), passes.partials(directions)], axis=1)
    pairs = zip(scales, decays, strict=True)
    expected = [passes.lamb_step(*each, *pair, RULE) for each, pair in zip(inputs, pairs, strict=True)]
    with native.isa(isa):
        for threads in THREADS:
            held = [copies(weights), *(copies(slot) for slot in slots)]
            layers = native.layers(held[0], gradients, held[1:], scales, decays)
            found, status = native.lamb_partials(layers, RULE, 0, blocks(weights), Parallel(threads))
            assert status == 0
            same_bits(found, sums)
            assert native.lamb_update(layers, RULE, Parallel(threads)) == 0
            for number, arrays in enumerate(expected):
                for kind, array in enumerate(arrays):
                    same_bits(held[kind][number], array)


@hypothesis.given(
    sizes=st.lists(st.sampled_from([0, 1, 31, 4097, 65536, 65537, 140_000]), max_size=5),
    shares=st.lists(st.floats(0, 1), max_size=7),
    threads=st.integers(1, 4),
)
def test_any_shares_give_the_same_bits(sizes, shares, threads):
    weights, _, gradients = problem("float32", 0, [(size,) for size in sizes])
    layers, total = native.layers(weights, gradients), blocks(weights)
    whole, _ = native.lars_partials(layers, 0, total)
    bounds = [0, *sorted(int(share * total) for share in shares), total]
    parts = [native.lars_partials(layers, a, b, Parallel(threads))[0] for a, b in itertools.pairwise(bounds)]
    same_bits(np.concatenate(parts), whole)


@EACH_ISA
@pytest.mark.parametrize("skew", range(1, 16, 2))
def test_memory_need_not_be_aligned(isa, skew):
    def skewed(array):
        return np.concatenate([np.zeros(skew, array.dtype), array])[skew:]

    weights, slots, gradients = problem("float32", 1, [(1000,)])
    expected = passes.lars_step(weights[0], slots[0][0], gradients[0], 0.1, 0.01, 0.9, True)
    held, moving, gradients = ([skewed(each[0])] for each in (weights, slots[0], gradients))
    with native.isa(isa):
        assert native.lars_update(native.layers(held, gradients, [moving], [0.1], [0.01]), 0.9, True) == 0
    same_bits(held[0], expected[0])


SPECIAL = {
    "denormal": [1e-45, -1e-40, 1.1e-38, 5e-45],
    "large": [3e38, -3e38, 1e30, 2e38],
    "infinite": [np.inf, -np.inf, 1.0, 0.0],
    "zero": [0.0, -0.0, 0.0, -0.0],
}


@EACH_ISA
@EACH_DTYPE
@pytest.mark.parametrize("kind", SPECIAL)
def test_special_numbers_are_the_same_bits(isa, dtype, kind):
    def tiled(shift):
        with np.errstate(over="ignore"):
            return [np.tile(np.roll(SPECIAL[kind], shift), 17).astype(passes.DTYPES[dtype])]

    weights, velocities, gradients = tiled(0), tiled(1), tiled(2)
    with np.errstate(all="ignore"):
        expected = passes.lars_step(weights[0], velocities[0], gradients[0], 0.5, 0.25, 0.9, False)
    layers = native.layers(weights, gradients, [velocities], [0.5], [0.25])
    with native.isa(isa):
        native.lars_update(layers, 0.9, False)
    for found, array in zip((weights[0], velocities[0]), expected, strict=True):
        unknown = np.isnan(array.astype(np.float64))
        np.testing.assert_array_equal(np.isnan(found.astype(np.float64)), unknown)
        same_bits(found[~unknown], array[~unknown])


@EACH_ISA
def test_what_decays_never_becomes_denormal(isa):
    weights, slots, gradients = problem("float32", 2, [(100,)])
    gradients = [np.zeros(100, np.float32)]
    layers = native.layers(weights, gradients, slots, [0.1], [0.0])
    with native.isa(isa):
        for _ in range(900):  # 0.9^900 is 7e-42
            native.lamb_update(layers, RULE)
    assert (slots[0][0] == 0).all() and not np.signbit(slots[0][0]).any()


def test_arguments_that_cannot_be_are_refused():
    weights, slots, gradients = problem("float32", 2, [(10,)])

    def made(**changes):
        layers = native.layers(weights, gradients, slots, [1.0], [0.0])
        for name, value in changes.items():
            setattr(layers[0], name, value)
        return layers

    assert native.lars_update(made(), 0.9, False) == 0
    for changes in ({"size": -1}, {"dtype": 4}, {"dtype": -1}, {"weight": None}, {"gradient": None}):
        assert native.lars_update(made(**changes), 0.9, False) == -1
        assert native.lamb_update(made(**changes), RULE) == -1
        assert native.lars_partials(made(**changes), 0, 0)[1] == -1
    for first, last in ((-1, 0), (0, 2), (2, 2)):
        layers = made()
        assert (
            native.library().lars_partials(layers, native._I64(1), native._I64(first), native._I64(last), None, None)
            == -1
        )
    for changes in ({"beta_1": 1.0}, {"beta_2": -1.0}, {"beta_1": np.nan}, {"step": 0}):
        assert native.lamb_update(made(), RULE._replace(**changes)) == -1


def test_a_number_of_blocks_that_overflows_is_refused():
    layers = (native.Layer * (2**15))()
    for layer in layers:
        layer.size = 2**63 - 1
    assert native.library().lars_block_count(layers, native._I64(len(layers))) > 0
    more = (native.Layer * (2**17))()
    for layer in more:
        layer.size = 2**63 - 1
    assert native.library().lars_block_count(more, native._I64(len(more))) == -1


@pytest.mark.thorough
def test_the_kernels_keep_within_their_memory(tmp_path):
    """The same kernels with the sanitizers for addresses and undefined behaviour, without Python or TensorFlow."""
    kernels = [*OPS.glob("lars/kernels_*.cc"), OPS / "lars" / "passes.cc"]
    sanitizers.check(tmp_path, Path(__file__).with_name("sanitize_passes.cc"), kernels, level="-O0")
