"""The GPU selection: equal to NumPy bit for bit. Needs no TensorFlow, and no GPU for the emulated half.

The same cases run on the kernels emulated on the CPU (see emulated/cuda_runtime.h), with so little slack that small
vectors reach every path, and on a GPU if there is one. With PyTorch or CuPy:

    python -m pytest --confcutdir=tests/gpu tests/gpu  # compiles select_gpu.cu if the package is not built
    compute-sanitizer --tool memcheck python -m pytest --confcutdir=tests/gpu tests/gpu -k gpu
"""

import ctypes

import numpy as np
import pytest

from tests.gpu import reference
from tests.gpu.vectors import KINDS, assert_plain, vector

pytestmark = pytest.mark.thorough

SIZES = (1, 2, 65, 4097, 12288, 69001)  # tiles of 4096: from none to many, full and partial, even and odd


def shares(size):
    """Numbers of elements to keep, from one to all."""
    return sorted({1, size // 1000 + 1, size // 40 + 1, size - size // 3, size})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_topk_is_exact(selection, kind, size):
    x = vector(kind, size)
    for k in shares(size):
        assert_plain(selection.topk(x, k), x, reference.exact(x, k))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_mstopk_is_algorithm_1(selection, kind, size):
    x = vector(kind, size)
    for number, k in enumerate(shares(size)):
        samplings, seed = (30, 3, 12, 1)[number % 4], 2**64 - 1 - number
        assert_plain(selection.mstopk(x, k, samplings, seed), x, reference.mstopk(x, k, samplings, seed))


@pytest.mark.parametrize("dtype", [np.float16, np.uint16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("size", [5, 4097, 70000])
def test_half_precision_in_and_out(selection, dtype, size):
    x = reference.narrow(vector("normal", size), dtype)
    k = max(1, size // 100)
    wide = reference.widen(x)
    assert_plain(selection.topk(x, k), x, reference.exact(wide, k))
    assert_plain(selection.mstopk(x, k, 30, 7), x, reference.mstopk(wide, k, 30, 7))


@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in-place"])
@pytest.mark.parametrize("wire", [np.float32, np.float16, np.uint16], ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16], ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("count", "size"), [(1, 4096), (2, 9001), (3, 40960), (8, 33)])
def test_feedback_keeps_what_is_not_sent(selection, count, size, dtype, wire, in_place):
    parts = reference.narrow(np.stack([vector("layers", size, part) for part in range(count)]), dtype)
    residual = vector("normal", size, 99) * np.float32(0.1)
    total = reference.accumulate(parts, residual)
    k = max(1, size // 100)
    for indices, result in (
        (reference.exact(total, k), selection.feedback_topk(parts, residual, k, wire, in_place)),
        (reference.mstopk(total, k, 30, 3), selection.feedback_mstopk(parts, residual, k, wire, 30, 3, in_place)),
    ):
        values, found, new_residual, fault = result
        expected_values, expected_residual = reference.feedback(parts, residual, indices, wire)
        assert np.array_equal(found, indices)
        assert np.array_equal(values.view(np.uint8), expected_values.view(np.uint8))
        assert np.array_equal(new_residual.view(np.uint32), expected_residual.view(np.uint32))
        assert fault == 0


@pytest.mark.parametrize("skewed", [False, True], ids=["aligned", "skewed"])
@pytest.mark.parametrize("stride", [9001, 9004, 12000])
def test_vectors_may_lie_anywhere(selection, stride, skewed):
    selection = selection.skewed() if skewed else selection
    parts = np.full((3, stride), np.nan, np.float32)
    parts[:, :9001] = [vector("normal", 9001, part) for part in range(3)]
    residual = vector("normal", 9001, 5)
    expected = reference.exact(reference.accumulate(parts[:, :9001], residual), 90)
    values, indices, new_residual, fault = selection.feedback_topk(parts, residual, 90, np.float16)
    expected_values, expected_residual = reference.feedback(parts[:, :9001], residual, expected, np.float16)
    assert np.array_equal(indices, expected) and np.array_equal(values, expected_values)
    assert np.array_equal(new_residual, expected_residual) and fault == 0
    x = np.ascontiguousarray(parts[0, :9001])
    assert_plain(selection.mstopk(x, 90, 30, 0), x, reference.mstopk(x, 90, 30, 0))


@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in-place"])
def test_what_overflows_the_wire_is_a_fault(selection, in_place):
    parts, residual = vector("normal", 70000)[None].repeat(2, 0), np.zeros(70000, np.float32)
    parts[:, 777] = 65519.9, 0
    assert selection.feedback_topk(parts, residual, 3, np.float16, in_place)[3] == 0
    parts[0, 777] = -7e4
    assert selection.feedback_topk(parts, residual, 3, np.float16, in_place)[3] == 3
    assert selection.feedback_mstopk(parts, residual, 3, np.float16, 30, 0, in_place)[3] == 3
    assert selection.feedback_topk(parts, residual, 3, np.uint16, in_place)[3] == 0
    parts[1, 888] = np.nan
    assert selection.feedback_topk(parts, residual, 3, np.float16, in_place)[3] == 2


def test_nothing_kept_and_nothing_there(selection):
    residual = vector("normal", 5000, 1)
    parts = vector("normal", 5000, 2)[None]
    for result in (
        selection.feedback_topk(parts, residual, 0, np.float16),
        selection.feedback_mstopk(parts, residual, 0, np.float16, 30, 0),
    ):
        values, indices, new_residual, fault = result
        assert (values.size, indices.size, fault) == (0, 0, 0)
        assert np.array_equal(new_residual, reference.accumulate(parts, residual))
    nothing = np.empty(0, np.float32)
    assert_plain(selection.topk(nothing, 0), nothing, np.empty(0, np.int32))
    assert selection.feedback_mstopk(nothing[None], nothing, 0, np.float32, 30, 0)[3] == 0


BROKEN = {
    "NaN": [(1, 17, np.nan)],
    "infinity": [(2, 0, np.inf)],
    "of two the lower": [(2, 3, np.nan), (0, 60000, -np.inf)],
    "all": [(0, slice(None), np.nan)],
    "the sum": [(0, 5, 3e38), (1, 5, 3e38)],
    "infinities that cancel": [(1, 8, np.inf), (2, 8, -np.inf)],
    "the residual": [(None, 69999, np.nan)],
}


@pytest.mark.parametrize("places", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in-place"])
def test_what_is_not_finite_is_told_and_does_no_harm(selection, places, in_place):
    size, k = 70000, 70
    parts = np.stack([vector("normal", size, part) for part in range(3)])
    residual = vector("normal", size, 9)
    for part, index, value in places:
        (residual if part is None else parts[part])[index] = value
    fault = reference.fault_of(parts, reference.accumulate(parts, residual))
    assert fault != 0
    for result in (
        selection.feedback_topk(parts, residual, k, np.float32, in_place),
        selection.feedback_mstopk(parts, residual, k, np.float32, 30, 1, in_place),
    ):
        assert result[3] == fault
        assert np.unique(result[1]).size == k
        assert result[1].min() >= 0 and result[1].max() < size


@pytest.mark.parametrize("places", [[17], [69999, 4096, 5], range(0, 70000, 7)], ids=["one", "three", "many"])
def test_report_counts_what_is_not_finite(selection, places):
    x = vector("normal", 70000)
    x[list(places)] = np.inf
    for values, indices, report in (selection.topk(x, 50), selection.mstopk(x, 50, 30, 0)):
        assert report.tolist() == [len(places), min(places)]
        assert np.unique(indices).size == values.size == 50


def test_results_do_not_hang_on_the_order_of_threads(selection):
    x = vector("ties", 70000)
    first = selection.mstopk(x, 700, 30, 4)
    for _ in range(3):
        again = selection.mstopk(x, 700, 30, 4)
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("kind", ["normal", "layers", "ties", "constant"])
@pytest.mark.parametrize("size", [1_000_000, 20_000_003])
def test_large_vectors_on_the_gpu(gpu, kind, size):
    x = vector(kind, size)
    for k in (size // 1000, size // 10):
        assert_plain(gpu.topk(x, k), x, reference.exact(x, k))
        assert_plain(gpu.mstopk(x, k, 30, k), x, reference.mstopk(x, k, 30, k))


def test_bad_arguments_are_refused_in_words(selection):
    x = vector("normal", 100)
    for k in (-1, 101):
        with pytest.raises(RuntimeError, match="0 <= kept <= size"):
            selection.topk(x, k) if k > 0 else selection.workspace_bytes(100, k, False)
    with pytest.raises(RuntimeError, match="samplings >= 1"):
        selection.mstopk(x, 5, 0, 0)
    native, nothing, number = selection.native, ctypes.c_void_p(None), ctypes.c_int64
    for workspace, size in ((0x1000, 10), (0x1001, 1 << 30), (0, 1 << 30)):
        code = native.hvds_gpu_topk(nothing, 0, number(0), number(0), nothing, nothing, ctypes.c_void_p(0x1000),
                                    ctypes.c_void_p(workspace), ctypes.c_size_t(size), nothing)  # fmt: skip
        assert b"workspace" in native.hvds_gpu_error(code)
