"""Sums of several gradients become means in place."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import ops
from tests.simulation import same_bits

SHAPES = [(), (3,), (2, 5), (0,), (300_000,)]


def means(totals, divisor, residual=()):
    residual = np.asarray(residual, np.float32).reshape([-1])
    return ops.library().hvd_sparse_means(totals=totals, divisor=float(divisor), residual=residual)


def some(dtype, seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype(dtype) for shape in SHAPES]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("divisor", [1, 3, 4])
def test_each_sum_is_divided_in_its_shape(dtype, divisor):
    totals = some(dtype)
    divided, nonfinite = means(totals, divisor)
    for mean, total in zip(divided, totals, strict=True):
        same_bits(mean.numpy(), (total.astype(np.float32) / np.float32(divisor)).astype(dtype))
    assert not nonfinite


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_what_is_carried_is_added_to_the_means(dtype):
    totals, residual = some(dtype), [each.astype(np.float32) for each in some(np.float32, seed=1)]
    divided, nonfinite = means(totals, 2, np.concatenate([each.ravel() for each in residual]))
    for mean, total, addend in zip(divided, totals, residual, strict=True):
        half = (total.astype(np.float32) / np.float32(2)).astype(dtype)
        same_bits(mean.numpy(), (half.astype(np.float32) + addend).astype(dtype))
    assert not nonfinite


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 2, 4])
@pytest.mark.parametrize("where", ["total", "residual"])
def test_one_that_is_not_finite_is_seen(bad, place, where):
    totals, residual = some(np.float32), some(np.float32, seed=1)
    np.ravel(totals[place] if where == "total" else residual[place])[-1:] = bad
    if place == 0:  # a scalar has no view
        (totals if where == "total" else residual)[0] = np.array(bad, np.float32)
    _, nonfinite = means(totals, 2, np.concatenate([each.ravel() for each in residual]))
    assert nonfinite


def test_a_sum_that_nobody_else_holds_is_divided_in_place_and_others_are_left():
    kept = tf.constant([2.0, 4.0])
    graph = tf.function(lambda: (means([kept + 0.0, kept], 2)[0], kept))
    (first, second), same = graph()
    np.testing.assert_array_equal([first, second, same], [[1, 2], [1, 2], [2, 4]])


@pytest.mark.parametrize(
    "divisor, residual, complaint",
    [
        ([1.0], [], "Expected a scalar divisor, got shape \\[1\\]"),
        (1.0, [1.0], "Expected residual of \\[0\\] or \\[2\\]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(divisor, residual, complaint):
    with pytest.raises(tf.errors.InvalidArgumentError, match=complaint):
        ops.library().hvd_sparse_means(totals=[[1.0, 2.0]], divisor=divisor, residual=tf.constant(residual, tf.float32))
