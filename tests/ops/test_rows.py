"""The largest elements of rows: the operations, their gradients, and the loops with each instruction set."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse import ops
from hvd_sparse.pipeline import rows
from tests.gpu import reference
from tests.gpu.rows_library import Shape
from tests.gpu.vectors import KINDS, vector
from tests.ops import native, sanitizers

OPS = Path(__file__).resolve().parents[2] / "ops"
REFUSED = (ValueError, tf.errors.InvalidArgumentError)
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), native.BFLOAT16]
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
ODD = ("NaN", "infinities", "halves", "ReLU", *KINDS)
WIDTHS = st.one_of(st.integers(0, 80), st.sampled_from([255, 256, 257, 511, 1024, 1027, 3000]))


def matrix(kind, count, width, dtype, seed=0):
    """Rows of a kind that has exposed bugs of selections."""
    random = np.random.default_rng([seed, count, width])
    x = random.standard_normal((count, width)).astype(np.float32)
    if kind in KINDS and width:
        x = np.stack([vector(kind, width, seed + row) for row in range(count)]) if count else x
    if kind == "halves":
        x = np.round(2 * x) / 2
    if kind == "ReLU":
        x = np.maximum(x - 1, 0)
    if kind in ("NaN", "infinities"):
        x[random.random(x.shape) < 0.2] *= 0
        x[random.random(x.shape) < 0.05] = np.nan if kind == "NaN" else -np.inf
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def bits(array):
    """Elements as integers, so that NaNs can be compared."""
    array = np.asarray(array)
    return array.view(np.uint32 if array.itemsize == 4 else np.uint16)


def same(one, other):
    one, other = bits(one), bits(other)
    assert one.shape == other.shape and one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)


def expected(x, k):
    """y, values and positions by NumPy's stable sort."""
    places = reference.largest_of_rows(x, k)
    values = np.take_along_axis(x, places, -1)
    y = np.zeros_like(x)
    np.put_along_axis(y, places, values, -1)
    return y, values, places


def check(x, k):
    """Tests all operations on one matrix."""
    y, values, places = expected(x, k)
    given_y, positions = rows.threshold_rows(x, k)
    same(given_y.numpy(), y)
    assert positions.dtype == rows.position_type(x.shape[-1])
    np.testing.assert_array_equal(positions, places)
    given_values, again = rows.largest_rows(x, k)
    same(given_values.numpy(), values)
    np.testing.assert_array_equal(again, places)
    same(rows.place_rows(given_values, positions, x.shape[-1]).numpy(), y)
    same(rows.gather_rows(x, positions).numpy(), values)
    same(rows.mask_rows(x, positions).numpy(), y)


# ---- selection ----


@EACH_DTYPE
@given(count=st.integers(0, 3), width=WIDTHS, share=st.floats(0, 1), kind=st.sampled_from(ODD), seed=st.integers(0, 99))
def test_every_instruction_set_selects_as_a_stable_sort_does(dtype, count, width, share, kind, seed):
    x = matrix(kind, count, width, dtype, seed)
    for k in {0, min(1, width), round(width * share), width}:
        for isa in native.isas():
            with native.isa(native.ISAS[isa]):
                check(x, k)


@EACH_DTYPE
@pytest.mark.parametrize("kind", ODD)
def test_rows_that_have_caught_selections_out(kind, dtype):
    x = matrix(kind, 3, 1029, dtype)
    for isa in native.isas():
        with native.isa(native.ISAS[isa]):
            for k in (1, 11, 52, 300, 900, 1028):
                check(x, k)


@EACH_DTYPE
def test_rows_that_are_alike_and_rows_that_are_not(dtype):
    """One row's threshold is the initial guess for the next, which must not change the result."""
    random = np.random.default_rng(0)
    x = random.standard_normal((400, 300))
    x[100:200] *= np.exp2(random.integers(-8, 8, (100, 1)))
    x[200:300] *= np.linspace(1, 9, 100)[:, np.newaxis]
    x[300::3] = np.maximum(x[300::3] - 2, 0)
    for isa in native.isas():
        with native.isa(native.ISAS[isa]):
            for k in (1, 15, 60, 130, 299):
                check(x.astype(dtype), k)


def test_of_equal_magnitudes_the_lower_positions_pass_and_zeros_keep_their_signs():
    x = np.array([[1, -1, 2, 1, -2, 1], [0, -0.0, 0, -0.0, 0, -0.0]], np.float32)
    y, positions = rows.threshold_rows(x, 4)
    assert positions.numpy().tolist() == [[0, 1, 2, 4], [0, 1, 2, 3]]
    assert np.signbit(y.numpy()).tolist()[1] == [False, True, False, True, False, False]


def test_what_is_not_finite_is_never_hidden():
    x = np.ones((1, 700), np.float32)
    x[0, [3, 600, 699]] = np.inf, np.nan, -np.nan
    assert rows.largest_rows(x, 2)[1].numpy().tolist() == [[600, 699]]
    assert rows.largest_rows(x, 3)[1].numpy().tolist() == [[3, 600, 699]]


@given(seed=st.integers(0, 999), k=st.integers(1, 40))
def test_permuted_rows_give_permuted_results(seed, k):
    random = np.random.default_rng(seed)
    x = matrix("halves", 9, 40, np.float32, seed)
    order = random.permutation(len(x))
    for one, other in zip(rows.threshold_rows(x, k), rows.threshold_rows(x[order], k), strict=True):
        np.testing.assert_array_equal(one.numpy()[order], other)


@pytest.mark.parametrize(
    "dtype", [DTYPES[0], *(pytest.param(each, marks=pytest.mark.thorough) for each in DTYPES[1:])], ids=str
)
def test_results_that_leave_the_caches_are_the_same(dtype):
    """Results above 4 MiB are written with stores that bypass the caches, if rows begin at cache lines."""
    x = tf.constant(matrix("normal", 520, 8192 // dtype.itemsize, dtype))
    y, values, places = expected(x.numpy(), 103)
    assert y.nbytes > 4 << 20
    for isa in native.isas():
        with native.isa(native.ISAS[isa]):
            given_y, positions = rows.threshold_rows(x, 103)
            same(given_y.numpy(), y)
            np.testing.assert_array_equal(positions, places)
            same(rows.mask_rows(x, positions).numpy(), y)
            same(rows.place_rows(tf.constant(values), positions, x.shape[-1]).numpy(), y)


@pytest.mark.parametrize("threads", [1, 3, 7])
def test_any_threads_select_alike(threads):
    x = matrix("normal", 450, 2049, np.float32)
    y, _, places = expected(x, 103)
    shape = Shape(native.code(x), *x.shape, 103, 1)
    given_y, positions = np.full_like(x, 7), np.zeros(places.shape, np.uint16)
    parallel = native.Parallel(threads)
    pointers = [native.pointer(x), native.pointer(given_y), None, native.pointer(positions), ctypes.byref(parallel)]
    assert native.library().hvds_largest_rows(ctypes.byref(shape), *pointers) == 0
    same(given_y, y)
    np.testing.assert_array_equal(positions, places)
    assert parallel.tasks_run == (0 if threads == 1 else threads)


def test_positions_are_as_narrow_as_rows_allow():
    for width, dtype in ((65536, tf.uint16), (65537, tf.int32)):
        x = np.zeros((2, width), np.float32)
        x[:, [5, width - 1]] = 1
        y, positions = rows.threshold_rows(x, 2)
        assert positions.dtype == dtype and positions.numpy().tolist() == [[5, width - 1]] * 2
        np.testing.assert_array_equal(y, x)
        np.testing.assert_array_equal(rows.place_rows(tf.ones([2, 2]), positions, width), x)


def test_rows_may_lie_in_any_number_of_axes():
    x = matrix("normal", 24, 17, np.float32)
    y, _, places = expected(x, 4)
    for shape in ((2, 3, 4), (24,), (1, 24)):
        given_y, positions = rows.threshold_rows(x.reshape(*shape, 17), 4)
        np.testing.assert_array_equal(given_y, y.reshape(*shape, 17))
        np.testing.assert_array_equal(positions, places.reshape(*shape, 4))
    np.testing.assert_array_equal(rows.threshold_rows(x[0], 4)[0], y[0])


# ---- shapes and gradients in graphs ----


def test_a_graph_knows_the_shapes():
    signature = [tf.TensorSpec([None, 3, 70], tf.float16)]

    @tf.function(input_signature=signature)
    def run(x):
        y, positions = rows.threshold_rows(x, 7)
        values, _ = rows.largest_rows(x, 7)
        placed, gathered = rows.place_rows(values, positions, 70), rows.gather_rows(x, positions)
        return y, positions, values, placed, gathered, rows.mask_rows(x, positions)

    shapes = [each.shape.as_list() for each in run.get_concrete_function().structured_outputs]
    assert shapes == [[None, 3, each] for each in (70, 7, 7, 70, 7, 70)]


@given(seed=st.integers(0, 999), k=st.integers(1, 30))
def test_gradients_take_the_mask_for_a_constant(seed, k):
    random = np.random.default_rng(seed)
    x, weights = (tf.constant(random.standard_normal((4, 30)).astype(np.float32)) for _ in range(2))
    _, _, places = expected(x.numpy(), k)
    mask = np.zeros(x.shape, np.float32)
    np.put_along_axis(mask, places, 1, -1)

    def spread(x):
        values, positions = rows.largest_rows(x, k)
        return rows.place_rows(values, positions, 30)

    def drawn(x):
        return rows.place_rows(rows.gather_rows(x, places.astype(np.uint16)), places.astype(np.uint16), 30)

    for operation in (
        lambda x: rows.threshold_rows(x, k)[0],
        lambda x: rows.mask_rows(x, places.astype(np.uint16)),
        spread,
        drawn,
    ):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                total = tf.reduce_sum(operation(x) ** 2 * weights)
            gradient = inner.gradient(total, x)
        np.testing.assert_allclose(gradient, 2 * x * weights * mask, rtol=1e-6)
        np.testing.assert_allclose(outer.gradient(gradient, x), 2 * weights * mask, rtol=1e-6)


# ---- invalid arguments ----


def test_what_cannot_be_selected_is_refused():
    x = tf.zeros([2, 5])
    for k in (-1, 6):
        with pytest.raises(REFUSED, match=r"k in \[0, 5\]|k' of"):
            rows.threshold_rows(x, k)
        with pytest.raises(REFUSED, match=r"k in \[0, 5\]|k' of"):
            tf.function(lambda k=k: rows.largest_rows(x, k))()
    with pytest.raises(TypeError, match="got float64; cast it"):
        rows.threshold_rows(tf.zeros([2, 5], tf.float64), 1)
    with pytest.raises(ValueError, match="known d"):
        tf.function(lambda x: rows.threshold_rows(x, 1)).get_concrete_function(tf.TensorSpec([2, None]))
    with pytest.raises(ValueError, match="known d"):
        rows.threshold_rows(tf.constant(1.0), 0)
    with pytest.raises(REFUSED, match="at most 65536 elements"):
        ops.library().hvd_sparse_threshold_rows(x=tf.zeros([1, 65537]), k=1, P=tf.uint16)


@pytest.mark.parametrize(
    "positions", [[-1, 2], [2, 5], [2, 2], [3, 1], [2**31 - 1, 2**31 - 1], [-(2**31), 3], [3, -(2**31)]]
)
def test_positions_that_are_outside_or_do_not_ascend_are_refused(positions):
    right = [0, 4]
    for dtype in (tf.int32, *([tf.uint16] if 0 <= min(positions) <= max(positions) < 65536 else [])):
        bad = tf.constant([right, positions, right, positions], dtype)
        with pytest.raises(REFUSED, match=r"ascend in each row and lie in \[0, 5\), got others in row 1"):
            rows.place_rows(tf.ones([4, 2]), bad, 5)
        for operation in (rows.gather_rows, rows.mask_rows):
            with pytest.raises(REFUSED, match=r"ascend in each row and lie in \[0, 5\), got others in row 1"):
                operation(tf.ones([4, 5]), bad)


@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from([np.int32, np.uint16]), width=st.integers(1, 9))
def test_whatever_a_message_says_is_refused_or_right(seed, dtype, width):
    random = np.random.default_rng(seed)
    positions = random.integers(-1 if dtype == np.int32 else 0, 10, (3, random.integers(1, 4))).astype(dtype)
    positions = np.sort(positions) if random.random() < 0.7 else positions
    right = positions.min() >= 0 and positions.max() < width and (np.diff(positions.astype(int)) > 0).all()
    values = random.standard_normal(positions.shape).astype(np.float32)
    if not right:
        with pytest.raises(REFUSED):
            rows.place_rows(values, positions, width)
        return
    y = np.zeros((3, width), np.float32)
    np.put_along_axis(y, positions.astype(int), values, -1)
    same(rows.place_rows(values, positions, width).numpy(), y)


def test_shapes_that_do_not_fit_are_refused():
    positions = tf.constant([[0, 1]], tf.uint16)
    with pytest.raises(REFUSED):
        rows.place_rows(tf.ones([1, 3]), positions, 5)
    with pytest.raises(REFUSED):
        rows.place_rows(tf.ones([2, 2]), positions, 5)
    with pytest.raises(REFUSED, match=r"k in \[0, 1\]"):
        rows.place_rows(tf.ones([1, 2]), positions, 1)
    for operation in (rows.gather_rows, rows.mask_rows):
        with pytest.raises(REFUSED, match="of the same rows"):
            operation(tf.ones([2, 5]), positions)
        with pytest.raises(REFUSED, match="of the same rows"):
            operation(tf.ones([5]), positions)
    with pytest.raises(REFUSED):
        tf.function(lambda: rows.mask_rows(tf.ones([2, 5]), positions))()


@pytest.mark.thorough
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_loops_keep_within_their_memory(sanitizer, tmp_path):
    """With sanitizers, without Python or TensorFlow."""
    main = Path(__file__).with_name("sanitize_rows.cc")
    sanitizers.check(tmp_path, main, OPS.glob("pipeline/rows*_cpu*.cc"), sanitizer, "-O0")
