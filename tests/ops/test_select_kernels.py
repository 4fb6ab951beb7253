"""The kernels of ops/select through ctypes: the reference's bits for all instruction sets and thread counts."""

import ctypes
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.gpu import reference
from tests.ops import native, sanitizers

OPS = Path(__file__).resolve().parents[2] / "ops"
SIZES = [1, 2, 7, 63, 64, 65, 4095, 4096, 4097, pytest.param(100_000, marks=pytest.mark.thorough)]
LARGE = 1_000_003
BEYOND_CACHES = 2_600_001  # with half of them kept, all outputs are written with stores that bypass the caches
THREADS = [3, *(pytest.param(threads, marks=pytest.mark.thorough) for threads in (2, 7))]
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def _outlier(random, size):
    x = random.standard_normal(size)
    x[size // 2] = 1e30
    return x


def _few(random, size):
    x = np.zeros(size)
    places = random.integers(0, size, max(1, size // 1000))
    x[places] = random.standard_normal(len(places))
    return x


def _front(random, size):
    x = random.standard_normal(size) * 1e-3
    x[: size // 50] *= 1e4
    return x


def _misleading(random, size):
    """If every eighth element is large, a sample with a stride of eight sees all of them or none."""
    x = np.full(size, 0.5)
    x[7::8] = 5 * random.standard_normal(len(x[7::8]))
    return x


def _neighbours(random, size):
    """Adjacent float32 numbers: the winners are one step above those that tie for the last place."""
    return random.choice([-1, 1], size) * (1 + 2.0**-23 * random.integers(0, 4, size))


INPUTS = {
    "gaussian": lambda random, size: random.standard_normal(size),
    "laplace": lambda random, size: random.laplace(size=size),
    "student": lambda random, size: random.standard_t(1.5, size=size),
    "constant": lambda random, size: np.full(size, -2.0),
    "zeros": lambda random, size: np.zeros(size),
    "ties": lambda random, size: random.integers(-3, 4, size),
    "ascending": lambda random, size: np.arange(size),
    "descending": lambda random, size: -np.arange(size)[::-1],
    "one outlier": _outlier,
    "denormals": lambda random, size: 1e-40 * random.standard_normal(size),
    "few that are not zero": _few,
    "large in front": _front,
    "misleading": _misleading,
    "neighbours": _neighbours,
}


class Workspace:
    """A workspace of the kernels, with methods that call them with it."""

    def __init__(self):
        self._native = native.library()
        self._native.hvds_workspace_create.restype = ctypes.c_void_p
        self.memory = ctypes.c_void_p(self._native.hvds_workspace_create())

    def select(self, x, k, search=None, parallel=None):
        """Values and indices of hvds_topk, or of hvds_mstopk if `search` is (samplings, seed)."""
        values, indices, report = np.zeros(k, x.dtype), np.full(k, -7, np.int32), np.zeros(2, np.int64)
        vector = [native.pointer(x), native.code(x), ctypes.c_int64(x.size), ctypes.c_int64(k)]
        outputs = [native.pointer(values), native.pointer(indices), native.pointer(report), *self._last(parallel)]
        function = self._native.hvds_topk if search is None else self._native.hvds_mstopk
        assert function(*vector, *_search(search), *outputs) == 0
        return values, indices, report.tolist()

    def feed_back(self, parts, residual, k, wire, search=None, parallel=None, in_place=False):
        """Values, indices, residual_out and fault of the fused step."""
        values, indices = np.zeros(k, wire), np.full(k, -7, np.int32)
        new_residual = residual.copy() if in_place else native.aligned(np.full(residual.size, np.nan, np.float32))
        fault = np.zeros(1, np.int32)
        count, size = parts.shape
        rows = [native.pointer(parts), native.code(parts), ctypes.c_int64(count), ctypes.c_int64(size)]
        added = native.pointer(new_residual if in_place else residual)
        vector = [*rows, added, ctypes.c_int64(size), ctypes.c_int64(k), *_search(search)]
        outputs = [native.pointer(array) for array in (values, indices, new_residual, fault)]
        function = self._native.hvds_feedback_topk if search is None else self._native.hvds_feedback_mstopk
        assert function(*vector, native.code(values), *outputs, *self._last(parallel)) == 0
        return values, indices, new_residual, int(fault[0])

    def _last(self, parallel):
        return [self.memory, None if parallel is None else ctypes.byref(parallel)]


def _search(search):
    return [] if search is None else [ctypes.c_int(search[0]), ctypes.c_uint64(search[1] % 2**64)]


@pytest.fixture(scope="module")
def workspace():
    return Workspace()


def counts(size):
    return sorted({0, 1, min(size, 7), -(-size // 1000), -(-size // 100), -(-size // 10), size // 2, size - 1, size})


def same(given, wanted):
    """Asserts equality bit for bit, except for the signs of zeros."""
    np.testing.assert_array_equal(np.asarray(given, np.float32), np.asarray(wanted, np.float32))


def held(x):
    """bfloat16 in the form that the reference takes: its bits."""
    return x.view(np.uint16) if x.dtype == native.BFLOAT16 else x


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", INPUTS)
def test_every_instruction_set_selects_alike(kind, size, workspace):
    random = np.random.default_rng(size)
    x = INPUTS[kind](random, size).astype(np.float32)
    for k in counts(size):
        search = (int(random.choice([1, 3, 30])), int(random.integers(-(2**63), 2**63)))
        exact = reference.exact(x, k)
        approximate = reference.mstopk(x, k, *search) if k else exact
        for isa in native.isas():
            with native.isa(native.ISAS[isa]):
                values, indices, report = workspace.select(x, k)
                np.testing.assert_array_equal(indices, exact, f"{isa}, k = {k}")
                same(values, x[exact])
                assert report == [0, -1]
                values, indices, report = workspace.select(x, k, search)
                np.testing.assert_array_equal(indices, approximate, f"{isa}, k = {k}, {search}")
                same(values, x[approximate])


@pytest.mark.parametrize(
    "shapes, wire",
    [
        *(pytest.param(((65, 1), (4097, 3)), wire, id=str(wire)) for wire in DTYPES),
        pytest.param(((100_000, 2),), DTYPES[1], id="large", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("kind", INPUTS)
def test_every_instruction_set_feeds_back_alike(kind, shapes, wire, workspace):
    random = np.random.default_rng(len(kind))
    for size, count in shapes:
        parts = np.stack([INPUTS[kind](random, size) for _ in range(count)]).astype(np.float32)
        if kind == "one outlier":
            parts = np.minimum(parts, 1e4)  # within the range of float16
        if kind in ("ascending", "descending"):
            parts /= 64
        residual = (0.1 * random.standard_normal(size)).astype(np.float32)
        total = reference.accumulate(parts, residual)
        for k in (1, -(-size // 100), -(-size // 10)):
            search = (30, int(random.integers(2**62)))
            for chosen, how in ((reference.exact(total, k), None), (reference.mstopk(total, k, *search), search)):
                coded = np.uint16 if wire == native.BFLOAT16 else wire
                sent, new_residual = reference.feedback(parts, residual, chosen, coded)
                for isa in native.isas():
                    for in_place in (False, True):
                        with native.isa(native.ISAS[isa]):
                            given = workspace.feed_back(parts, residual, k, wire, how, in_place=in_place)
                        np.testing.assert_array_equal(given[1], chosen, f"{isa}, size {size}, k = {k}, {how}")
                        np.testing.assert_array_equal(held(given[0]), sent)
                        same(given[2], new_residual)
                        assert given[3] == 0


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("kind", ["gaussian", "ties", "constant", "large in front"])
def test_any_threads_select_alike(kind, threads, workspace):
    random = np.random.default_rng(3)
    x = INPUTS[kind](random, LARGE).astype(np.float32)
    residual = random.standard_normal(LARGE).astype(np.float32)
    total = x + residual
    parallel = native.Parallel(threads)
    for k in (1000, 100_000):
        np.testing.assert_array_equal(workspace.select(x, k, None, parallel)[1], reference.exact(x, k))
        np.testing.assert_array_equal(workspace.select(x, k, (30, 5), parallel)[1], reference.mstopk(x, k, 30, 5))
        chosen = reference.exact(total, k)
        given = workspace.feed_back(x[np.newaxis], residual, k, DTYPES[0], None, parallel)
        np.testing.assert_array_equal(given[1], chosen)
        same(given[2], reference.feedback(x[np.newaxis], residual, chosen, np.float32)[1])
    assert parallel.tasks_run > 0


@pytest.mark.parametrize(
    "wire, threads",
    [
        (DTYPES[0], 2),
        *(pytest.param(DTYPES[number], 1 + number, marks=pytest.mark.thorough) for number in (0, 1)),
    ],
)
def test_what_does_not_fit_into_the_caches(wire, threads, workspace):
    random = np.random.default_rng(6)
    parts = random.standard_normal((1, BEYOND_CACHES)).astype(np.float32)
    residual = random.standard_normal(BEYOND_CACHES).astype(np.float32)
    total = reference.accumulate(parts, residual)
    for k in (BEYOND_CACHES // 100, BEYOND_CACHES // 2):
        chosen = reference.exact(total, k)
        sent, new_residual = reference.feedback(parts, residual, chosen, wire)
        for isa in native.isas():
            with native.isa(native.ISAS[isa]):
                given = workspace.feed_back(parts, residual, k, wire, None, native.Parallel(threads))
            np.testing.assert_array_equal(given[1], chosen)
            np.testing.assert_array_equal(given[0], sent)
            same(given[2], new_residual)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_narrow_elements_are_widened(dtype, workspace):
    random = np.random.default_rng(4)
    for size in (7, 4097, 100_000):
        parts = random.standard_normal((2, size)).astype(dtype)
        residual = random.standard_normal(size).astype(np.float32)
        k = -(-size // 50)
        for isa in native.isas():
            with native.isa(native.ISAS[isa]):
                values, indices, _ = workspace.select(parts[0], k)
                chosen = reference.exact(reference.widen(held(parts[0])), k)
                np.testing.assert_array_equal(indices, chosen)
                np.testing.assert_array_equal(held(values), held(parts[0][chosen]))
                given = workspace.feed_back(parts, residual, k, DTYPES[0])
                total = reference.accumulate(held(parts), residual)
                chosen = reference.exact(total, k)
                np.testing.assert_array_equal(given[1], chosen)
                same(given[2], reference.feedback(held(parts), residual, chosen, np.float32)[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [9, 4100, 300_000])
def test_what_is_not_finite_is_told(size, bad, workspace):
    random = np.random.default_rng(5)
    parts = random.standard_normal((3, size)).astype(np.float32)
    residual = np.zeros(size, np.float32)
    for isa in native.isas():
        with native.isa(native.ISAS[isa]):
            for place in (0, size // 2, size - 1):
                broken = parts.copy()
                broken[1, place] = bad
                for search in (None, (30, 1)):
                    _, indices, _, fault = workspace.feed_back(broken, residual, 3, DTYPES[0], search)
                    assert fault == 2
                    assert len(set(indices)) == 3 and indices.min() >= 0 and indices.max() < size
                    assert workspace.select(broken[1], 3, search)[2] == [1, place]
    overflow = np.full((2, size), 3e38, np.float32)
    assert workspace.feed_back(overflow, residual, 3, DTYPES[0])[3] == 3


def test_what_is_too_large_for_the_wire_is_a_fault(workspace):
    parts = np.full((1, 100), 1e5, np.float32)
    assert workspace.feed_back(parts, np.zeros(100, np.float32), 3, DTYPES[0])[3] == 0
    assert workspace.feed_back(parts, np.zeros(100, np.float32), 3, DTYPES[1])[3] == 2


@pytest.mark.thorough
@pytest.mark.parametrize("sanitizer, level", [("address,undefined", "-O0"), ("thread", "-O1")])
def test_the_kernels_keep_within_their_memory(sanitizer, level, tmp_path):
    """The same kernels with sanitizers, without Python or TensorFlow."""
    main = Path(__file__).with_name("sanitize_select.cc")
    sanitizers.check(tmp_path, main, OPS.glob("select/select_cpu*.cc"), sanitizer, level)
