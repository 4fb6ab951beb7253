"""Properties that only the emulated kernels show: the path they took, and each of their rules."""

import ctypes

import numpy as np
import pytest

from tests.gpu import library, reference
from tests.gpu.vectors import assert_plain, vector

pytestmark = pytest.mark.thorough

SAMPLE = 16384


def _pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


def outcome(emulated, size, k, mstopk):
    """The last call's statistics: candidates found, candidates allowed, winners taken from the whole vector."""
    candidates, capacity, whole = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int()
    emulated.native.hvds_emulated_outcome(
        ctypes.c_int64(size), ctypes.c_int64(k), int(mstopk), emulated.workspace.pointer,
        ctypes.byref(candidates), ctypes.byref(capacity), ctypes.byref(whole),
    )  # fmt: skip
    return candidates.value, capacity.value, bool(whole.value)


def sampled(emulated, size):
    """Mask [size] of the elements sampled for the bound of the threshold."""
    native = emulated.native
    native.hvds_emulated_sample_position.restype = ctypes.c_uint32
    mask = np.zeros(size, bool)
    for group in range(native.hvds_emulated_sample_groups()):
        position = native.hvds_emulated_sample_position(group, size)
        mask[position : position + 4] = True
    return mask


def test_sample_is_in_range_and_distinct(emulated):
    for size in (2 * SAMPLE, 2 * SAMPLE + 1, 70001, 2**31 - 1):
        native = emulated.native
        native.hvds_emulated_sample_position.restype = ctypes.c_uint32
        positions = [native.hvds_emulated_sample_position(group, size) for group in range(SAMPLE // 4)]
        assert min(np.diff(positions)) >= 4
        assert positions[-1] + 4 <= size


def test_random_numbers_are_the_upper_half_of_the_product(emulated):
    rng = np.random.default_rng(8)
    emulated.native.hvds_emulated_random_below.restype = ctypes.c_uint32
    for range_ in (1, 2, 1000, 2**31, 2**32 - 1):
        for seed in rng.integers(0, 2**64, 200, dtype=np.uint64).tolist():
            found = emulated.native.hvds_emulated_random_below(ctypes.c_uint64(seed), ctypes.c_uint32(range_))
            assert found == reference.splitmix64(seed) * range_ >> 64


@pytest.mark.parametrize("kind", ["normal", "ascending", "layers", "denormal"])
def test_one_pass_suffices_where_the_sample_does_not_mislead(emulated, kind):
    size, k = 200_000, 200
    x = vector(kind, size)
    for mstopk, call in ((False, emulated.topk), (True, lambda x, k: emulated.mstopk(x, k, 30, 0))):
        call(x, k)
        candidates, capacity, whole = outcome(emulated, size, k, mstopk)
        assert k < candidates <= capacity < 0.05 * size
        assert not whole


def test_too_few_candidates_fall_back(emulated):
    size, k = 70000, 70
    places = np.flatnonzero(sampled(emulated, size))
    x = vector("normal", size) * np.float32(0.1)
    x[places[:60]] = 7  # enough for the sample to predict more than 70 of them
    assert_plain(emulated.topk(x, k), x, reference.exact(x, k))
    candidates, capacity, whole = outcome(emulated, size, k, False)
    assert candidates == 60 and capacity > 0 and whole


def test_too_many_candidates_fall_back(emulated):
    size, k = 200_000, 200
    x = np.where(sampled(emulated, size), np.float32(0.1), 1) * vector("normal", size)
    assert_plain(emulated.topk(x, k), x, reference.exact(x, k))
    candidates, capacity, whole = outcome(emulated, size, k, False)
    assert candidates > capacity and whole


def test_algorithm_1_may_reach_below_the_bound(emulated):
    size, k = 70000, 70
    reached = 0
    for samplings in range(8, 20):
        x = vector("outlier", size)
        expected = reference.mstopk(x, k, samplings, samplings)
        assert_plain(emulated.mstopk(x, k, samplings, samplings), x, expected)
        candidates, capacity, whole = outcome(emulated, size, k, True)
        assert k < candidates <= capacity
        reached += whole
    assert 0 < reached < 12


@pytest.mark.parametrize("size", [1, 63, 4096, 5000, 20000])
def test_block_sums_are_folded_by_halves(emulated, size):
    x = vector("layers", size)
    emulated.mstopk(x, 1, 1, 0)
    emulated.native.hvds_emulated_block_sums.restype = ctypes.POINTER(ctypes.c_float)
    found = emulated.native.hvds_emulated_block_sums(
        ctypes.c_int64(size), ctypes.c_int64(1), emulated.workspace.pointer
    )
    expected = reference.block_sums(x)
    assert np.array_equal(np.ctypeslib.as_array(found, expected.shape).view(np.uint32), expected.view(np.uint32))


def test_block_sums_are_added_in_order(emulated):
    rng = np.random.default_rng(5)
    emulated.native.hvds_emulated_sum.restype = ctypes.c_double
    ordered = 0
    for count in (1, 31, 1024, 5000):
        for spread in (0, 8, 40, 120):
            terms = np.exp2(rng.uniform(-spread, spread, count)).astype(np.float32)
            terms[rng.random(count) < 0.1] = 0
            expected = np.add.accumulate(terms.astype(np.float64))[-1]
            assert emulated.native.hvds_emulated_sum(_pointer(terms), count) == expected
            ordered += expected != np.add.accumulate(terms[::-1].astype(np.float64))[-1]
    assert ordered > 0


def test_order_is_ignored_only_where_sums_are_exact(emulated):
    def has_no_order(total, smallest):
        return bool(emulated.native.hvds_emulated_sum_has_no_order(ctypes.c_double(total), ctypes.c_float(smallest)))

    assert has_no_order(2.0**30 - 2.0**-23, 1.5)
    assert not has_no_order(2.0**30, 1.5)
    assert has_no_order(2.0**-97, 1e-45) and not has_no_order(2.0**-96, 1e-45)
    assert has_no_order(0.0, 3.0)
    assert not has_no_order(np.inf, 1.0) and not has_no_order(np.nan, 1.0)


def test_conversions_round_as_numpy_does(emulated):
    rng = np.random.default_rng(0)
    halves = np.arange(2**16, dtype=np.uint16)
    exact = halves.view(np.float16).astype(np.float32)
    finite = np.sort(exact[np.isfinite(exact)])
    midpoints = (finite[:-1].astype(np.float64) + finite[1:]) / 2
    floats = np.concatenate([
        midpoints.astype(np.float32),
        np.nextafter(midpoints.astype(np.float32), np.float32(np.inf)),
        rng.integers(0, 2**32, 2**18, dtype=np.uint32).view(np.float32),
        np.array([65504, 65519.99, 65520, 1e30, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-8, 0, -0.0], np.float32),
    ])  # fmt: skip
    halves = np.resize(halves, floats.size)
    widened, half, bfloat16 = np.empty_like(floats), np.empty_like(halves), np.empty_like(halves)
    arrays = (halves, widened, floats, half, bfloat16)
    emulated.native.hvds_emulated_convert(*map(_pointer, arrays), ctypes.c_int64(floats.size))
    assert np.array_equal(widened, halves.view(np.float16).astype(np.float32), equal_nan=True)
    expected = reference.narrow(floats, np.float16)
    assert np.array_equal(half.view(np.float16), expected, equal_nan=True)
    assert np.array_equal(np.signbit(half.view(np.float16)), np.signbit(expected))
    assert np.array_equal(bfloat16, reference.bfloat16_of_float32(floats))


def test_large_vectors_take_the_fast_path_as_shipped(tmp_path):
    shipped = library.emulated(tmp_path)
    x = vector("normal", 300_000)
    assert_plain(shipped.topk(x, 300), x, reference.exact(x, 300))
    candidates, capacity, whole = outcome(shipped, x.size, 300, False)
    assert 300 < candidates <= capacity and not whole
