"""Momentum on a GPU, or emulated: equal to NumPy bit for bit."""

import numpy as np
import pytest

from tests.gpu import library, momentum_library, reference
from tests.gpu.vectors import vector

pytestmark = pytest.mark.thorough

DECAY, GAIN = np.float32(0.9), np.float32(0.7)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16], ids=["float32", "float16", "bfloat16"])
EACH_NESTEROV = pytest.mark.parametrize("nesterov", [False, True], ids=["heavy ball", "Nesterov"])


@pytest.fixture(scope="module", params=["emulated", "gpu"])
def native(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    if request.param == "emulated":
        return momentum_library.emulated(folder)
    reason = library.missing_gpu()
    if reason:
        pytest.skip(f"the kernels cannot run on a GPU: {reason}")
    return momentum_library.on_gpu(folder)


def numpy_version(parts, velocity, nesterov, decay=DECAY, gain=GAIN):
    with np.errstate(all="ignore"):
        gained = gain * reference.accumulate(parts, None)
        after = decay * velocity + gained
        return after, decay * after + gained if nesterov else after


def same_bits(found, expected):
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@EACH_NESTEROV
@DTYPES
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in-place"])
@pytest.mark.parametrize(("count", "size", "skew"), [(1, 1, 0), (2, 9001, 1), (3, 2048, 0), (8, 33, 1), (2, 0, 0)])
def test_it_is_the_arithmetic_of_numpy(native, count, size, skew, in_place, dtype, nesterov):
    parts = reference.narrow(np.stack([vector("layers", size, part) for part in range(count)]), dtype)
    velocity = vector("denormal", size, 99)
    after, moves, culprit = native.advance(parts, velocity, DECAY, GAIN, nesterov, in_place, skew)
    expected = numpy_version(parts, velocity, nesterov)
    same_bits(after, expected[0])
    same_bits(moves, expected[1])
    assert culprit == 0


FAULTS = {
    "a NaN": ([(1, 17, np.nan)], 2),
    "of two the lower part": ([(2, 3, np.nan), (0, 6000, -np.inf)], 1),
    "infinities that cancel": ([(1, 8, np.inf), (2, 8, -np.inf)], 2),
    "the sum alone": ([(0, 5, 3e38), (1, 5, 3e38)], 4),
    "the velocity alone": ([(None, 5, 3e38), (0, 5, 3e38)], 4),
    "all of a part": ([(2, slice(None), np.nan)], 3),
}


@EACH_NESTEROV
@pytest.mark.parametrize("case", FAULTS)
def test_who_is_to_blame_is_told(native, case, nesterov):
    places, culprit = FAULTS[case]
    parts, velocity = np.ones((3, 7000), np.float32), np.ones(7000, np.float32)
    for part, index, value in places:
        (velocity if part is None else parts[part])[index] = value
    assert native.advance(parts, velocity, DECAY, GAIN, nesterov)[2] == culprit


@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in-place"])
@pytest.mark.parametrize(("size", "count"), [(0, 0), (1, 1), (9001, 90), (9001, 9001), (9001, 0)])
def test_what_is_at_the_indices_is_cleared(native, size, count, in_place):
    before = vector("normal", size)
    indices = np.random.default_rng(1).permutation(size)[:count].astype(np.int32)
    expected = before.copy()
    expected[indices] = 0
    same_bits(native.clear(before, indices, in_place, skew=size % 2), expected)


def test_indices_outside_are_passed_over(native):
    found = native.clear(np.ones(5, np.float32), np.array([-1, 5, 2, -(2**31), 2**31 - 1], np.int32))
    assert found.tolist() == [1, 1, 0, 1, 1]


def test_bad_arguments_are_refused_in_words(native):
    parts = np.ones((1, 4), np.float32)
    with pytest.raises(RuntimeError, match="count >= 1"):
        native.advance(parts[:0], parts[0], DECAY, GAIN, False)
    with pytest.raises(RuntimeError, match="count >= 1"):
        native.check(native.native.hvds_momentum_gpu_clear(None, 1, None, 0, None, None))
