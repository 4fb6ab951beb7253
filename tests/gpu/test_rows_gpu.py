"""The largest elements of rows on a GPU, or emulated: equal to NumPy bit for bit."""

import numpy as np
import pytest

from tests.gpu import library, reference, rows_library
from tests.gpu.vectors import KINDS, vector

pytestmark = pytest.mark.thorough

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16], ids=["float32", "float16", "bfloat16"])
POSITIONS = pytest.mark.parametrize("positions", [np.uint16, np.int32], ids=["narrow", "wide"])


@pytest.fixture(scope="module", params=["emulated", "gpu"])
def native(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    if request.param == "emulated":
        return rows_library.Rows(rows_library.emulated(folder), library.HostMemory(), skew=1)
    reason = library.missing_gpu()
    if reason:
        pytest.skip(f"the kernels cannot run on a GPU: {reason}")
    return rows_library.Rows(rows_library.on_gpu(folder), library.gpu_memory(), skew=1)


def matrix(kind, rows, width, dtype):
    return reference.narrow(np.stack([vector(kind, width, seed) for seed in range(rows)]), dtype)


def check(native, x, kept, positions):
    places = reference.largest_of_rows(x, kept).astype(positions)
    values = np.take_along_axis(x, places.astype(np.int64), 1)
    expected = np.zeros_like(x)
    np.put_along_axis(expected, places.astype(np.int64), values, 1)
    y, _, found = native.largest(x, kept, positions, dense=True, values=False)
    assert found.tobytes() == places.tobytes() and y.tobytes() == expected.tobytes()
    _, chosen, found = native.largest(x, kept, positions, dense=False, values=True)
    assert found.tobytes() == places.tobytes() and chosen.tobytes() == values.tobytes()
    assert native.place(values, places, x.shape[1]).tobytes() == expected.tobytes()
    assert native.gather(x, places).tobytes() == values.tobytes()
    assert native.mask(x, places).tobytes() == expected.tobytes()


@DTYPES
@POSITIONS
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 31), (2, 257), (2, 3000)])
def test_it_is_the_selection_of_numpy(native, rows, width, positions, dtype):
    x = matrix("normal", rows, width, dtype)
    for kept in sorted({0, 1, -(-width // 20), width // 2, width}):
        check(native, x, kept, positions)


@DTYPES
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_have_caught_selections_out(native, kind, dtype):
    check(native, matrix(kind, 2, 600, dtype), 30, np.uint16)


@DTYPES
def test_what_is_not_finite_counts_as_largest(native, dtype):
    x = matrix("normal", 1, 300, np.float32)
    x[0, [299, 7]] = np.nan, -np.inf
    x = reference.narrow(x, dtype)
    assert native.largest(x, 2, np.uint16, dense=True, values=False)[2].tolist() == [[7, 299]]
    assert native.largest(x, 1, np.uint16, dense=True, values=False)[2].tolist() == [[299]]


def test_positions_outside_are_passed_over(native):
    x = np.ones((1, 5), np.float32)
    positions = np.array([[-1, 5, 2, -(2**31), 2**31 - 1]], np.int32)
    assert native.mask(x, positions).tolist() == [[0, 0, 1, 0, 0]]
    assert native.gather(x, positions).tolist() == [[0, 0, 1, 0, 0]]
    assert native.place(x, positions, 5).tolist() == [[0, 0, 1, 0, 0]]


def test_bad_arguments_are_refused_in_words(native):
    x = np.ones((1, 4), np.float32)
    with pytest.raises(RuntimeError, match="kept <= width"):
        native.largest(x, 5, np.uint16, dense=True, values=False)
    with pytest.raises(RuntimeError, match="no null pointer"):
        native.call("mask", rows_library.shape_of(x, 4, 2, np.uint16), None, None, None)
