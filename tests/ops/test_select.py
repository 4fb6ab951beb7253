"""topk, mstopk and their fused forms as TensorFlow operations: shapes, dtypes, invalid input, results of NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse import ops
from tests.gpu import reference
from tests.ops.native import BFLOAT16
from tests.simulation import same_bits

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
SELECTIONS = {"topk": ops.topk, "mstopk": ops.mstopk}
FUSED = {"topk": ops.feedback_topk, "mstopk": ops.feedback_mstopk}
REFERENCES = {"topk": reference.exact, "mstopk": lambda x, k: reference.mstopk(x, k, 30, 0) if k else np.empty(0, int)}
REFUSED = (tf.errors.InvalidArgumentError, ValueError)  # when it runs, and when a graph is built
names = {"ids": str}


def held(x):
    """bfloat16 in the form that the reference takes: its bits."""
    return x.view(np.uint16) if x.dtype == BFLOAT16 else x


# ---- results ----


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("dtype", DTYPES, **names)
@pytest.mark.parametrize("shape", [(1,), (7,), (1000,), (3, 50), (2, 3, 41), (0, 5), (2, 0)])
def test_each_row_is_selected_from_by_itself(name, dtype, shape):
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    k = -(-shape[-1] // 3)
    values, indices = SELECTIONS[name](x, k)
    assert values.shape == indices.shape == (*shape[:-1], k)
    assert (values.dtype, indices.dtype) == (tf.as_dtype(dtype), tf.int32)
    for row in np.ndindex(shape[:-1]):
        chosen = REFERENCES[name](reference.widen(held(x[row])), k)
        np.testing.assert_array_equal(indices.numpy()[row], chosen)
        same_bits(values.numpy()[row], x[row][chosen])


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=200),
    st.data(),
)
def test_any_finite_vector_gives_exactly_k_of_its_elements(elements, data):
    x = np.array(elements, np.float32)
    k = data.draw(st.integers(0, x.size))
    seed = data.draw(st.integers(-(2**63), 2**63 - 1))
    samplings = data.draw(st.integers(1, 40))
    values, indices = ops.topk(x, k)
    np.testing.assert_array_equal(indices, reference.exact(x, k))
    same_bits(values.numpy(), x[indices.numpy()])
    values, indices = ops.mstopk(x, k, samplings, tf.constant(seed, tf.int64))
    assert np.unique(indices).size == k
    same_bits(values.numpy(), x[indices.numpy()])
    if k:
        np.testing.assert_array_equal(indices, reference.mstopk(x, k, samplings, seed % 2**64))


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("dtype", DTYPES, **names)
@pytest.mark.parametrize("wire", DTYPES, **names)
@pytest.mark.parametrize("count, size", [(1, 1), (2, 65), (3, 5000)])
def test_what_is_sent_and_the_residual_make_up_the_sum(name, dtype, wire, count, size):
    random = np.random.default_rng(size)
    parts = random.standard_normal((count, size)).astype(dtype)
    residual = random.standard_normal(size).astype(np.float32)
    k = -(-size // 10)
    values, indices, residual_out, fault = FUSED[name](parts, tf.constant(residual), k, wire_dtype=tf.as_dtype(wire))
    chosen = REFERENCES[name](reference.accumulate(held(parts), residual), k)
    coded = np.uint16 if wire == BFLOAT16 else wire
    sent, new_residual = reference.feedback(held(parts), residual, chosen, coded)
    np.testing.assert_array_equal(indices, chosen)
    np.testing.assert_array_equal(held(values.numpy()), sent)
    np.testing.assert_array_equal(residual_out, new_residual)
    assert fault.numpy() == 0
    decoded = np.zeros(size, np.float32)
    decoded[chosen] = values.numpy().astype(np.float32)
    np.testing.assert_array_equal(decoded + residual_out.numpy(), reference.accumulate(held(parts), residual))


def test_the_residual_of_a_variable_is_not_written():
    residual = tf.Variable(tf.ones([1000]))
    ops.feedback_topk(tf.ones([1, 1000]), residual, 10)
    tf.function(lambda: ops.feedback_topk(tf.ones([1, 1000]), residual, 10))()
    np.testing.assert_array_equal(residual, np.ones(1000))


# ---- shapes, known and unknown, when a graph is built ----


def traced(function, *specs):
    outputs = tf.function(function).get_concrete_function(*specs).outputs
    return [output.shape.as_list() for output in outputs]


@pytest.mark.parametrize("select", SELECTIONS.values())
def test_shapes_of_a_selection(select):
    x = tf.TensorSpec([4, 10], tf.float32)
    assert traced(lambda x: select(x, 3), x) == [[4, 3]] * 2
    assert traced(lambda x, k: select(x, k), x, tf.TensorSpec([], tf.int32)) == [[4, None]] * 2
    assert traced(lambda x: select(x, 3), tf.TensorSpec([None, None], tf.float16)) == [[None, 3]] * 2


@pytest.mark.parametrize("fused", FUSED.values())
def test_shapes_of_the_fused_step(fused):
    parts, residual = tf.TensorSpec([2, None], tf.float32), tf.TensorSpec([10], tf.float32)
    assert traced(lambda p, r: fused(p, r, 3), parts, residual) == [[3], [3], [10], []]
    known_later = traced(lambda p, r, k: fused(p, r, k), parts, residual, tf.TensorSpec([], tf.int64))
    assert known_later == [[None], [None], [10], []]


@pytest.mark.parametrize("select", SELECTIONS.values())
def test_a_number_that_is_only_known_when_it_runs(select):
    function = tf.function(select, input_signature=[tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.int64)])
    for k in (0, 2, 5):
        values, indices = function(tf.range(5.0), tf.constant(k, tf.int64))
        assert values.shape == indices.shape == [k]


# ---- invalid arguments ----


@pytest.mark.parametrize("select", SELECTIONS.values())
@pytest.mark.parametrize(
    "x, k, told",
    [
        (np.ones(4, np.float32), 5, r"k in \[0, 4\].*got 5"),
        (np.ones(4, np.float32), -1, r"k in \[0, 4\].*got -1"),
        (np.ones((2, 4), np.float32), 5, r"k in \[0, 4\].*got 5"),
        (np.array([1, np.nan, np.inf], np.float32), 1, "finite.*got 2.*index 1 of row 0"),
        (np.array([[1, 2], [3, -np.inf]], np.float32), 1, "finite.*got 1.*index 1 of row 1"),
    ],
)
def test_bad_values_are_refused_when_it_runs(select, x, k, told):
    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
        select(x, k)
    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
        tf.function(select)(x, tf.constant(k))


@pytest.mark.parametrize("select", SELECTIONS.values())
@pytest.mark.parametrize(
    "x, k, kind, told",
    [
        (tf.constant(1.0), 1, REFUSED, r"x of shape \[\.\.\., d\]|at least rank 1"),
        (tf.ones([4]), [1, 2], REFUSED, "scalar|rank 0"),
        (tf.ones([4], tf.int32), 1, TypeError, "x.*float32.*int32"),
        (tf.ones([4]), 1.5, TypeError, "k to be an integer.*1.5"),
    ],
)
def test_bad_arguments_are_refused(select, x, k, kind, told):
    with pytest.raises(kind, match=told):
        select(x, k)
    with pytest.raises(kind, match=told):
        tf.function(lambda: select(x, k))()


@pytest.mark.parametrize("select", [ops.mstopk, lambda x, k, n: ops.feedback_mstopk(x[tf.newaxis], x, k, n)])
def test_samplings_must_be_at_least_one(select):
    with pytest.raises(REFUSED, match="samplings of at least 1, got 0"):
        select(tf.ones([4]), 1, 0)


@pytest.mark.parametrize("fused", FUSED.values())
@pytest.mark.parametrize(
    "parts, residual, told",
    [
        ((1, 4), (5,), r"residual \[4\]|must be equal"),
        ((0, 4), (4,), "n of at least 1"),
        ((4,), (4,), r"parts \[n, d\]|rank 2"),
        ((1, 4), (1, 4), "residual|rank 1"),
    ],
)
def test_parts_and_residual_must_fit_together(fused, parts, residual, told):
    with pytest.raises(REFUSED, match=told):
        fused(tf.ones(parts), tf.ones(residual), 1)
    with pytest.raises(REFUSED, match=told):
        tf.function(lambda: fused(tf.ones(parts), tf.ones(residual), 1))()


@pytest.mark.parametrize("fused", FUSED.values())
def test_a_wire_of_no_known_dtype_is_refused(fused):
    with pytest.raises((TypeError, ValueError), match="wire_dtype.*float64"):
        fused(tf.ones([1, 4]), tf.ones([4]), 1, wire_dtype=tf.float64)
