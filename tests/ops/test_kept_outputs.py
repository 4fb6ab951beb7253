"""The memory of large outputs is reused, but only when nothing refers to it any more."""

import gc

import numpy as np
import pytest
import tensorflow as tf

from hvd_sparse import ops

SIZE = 300_000  # more than a megabyte of float32


def address(tensor):
    return np.frombuffer(memoryview(tensor), np.float32).__array_interface__["data"][0]


def summed(number):
    return ops.sum_parts(tf.fill([2, SIZE], tf.cast(number, tf.float32)))[0]


def test_what_is_held_is_not_written_again():
    held = [summed(number) for number in range(8)]
    assert len({address(tensor) for tensor in held}) == 8
    for number, tensor in enumerate(held):
        np.testing.assert_array_equal(tensor, np.full(SIZE, 2.0 * number))


def test_what_was_let_go_is_used_again():
    seen = []
    for number in range(6):
        total = summed(number)
        seen.append(address(total))
        np.testing.assert_array_equal(total, np.full(SIZE, 2.0 * number))
        del total
    assert len(set(seen)) <= 3


def test_other_shapes_get_memory_of_their_own():
    for size in (SIZE, SIZE + 1, SIZE + 2, SIZE + 3, SIZE):
        np.testing.assert_array_equal(ops.sum_parts(tf.ones([3, size]))[0], np.full(size, 3.0))


@pytest.mark.parametrize("steps", [7])
def test_a_residual_goes_to_and_fro_between_two_buffers(steps):
    """A variable takes a new residual by reference, which frees the previous one for the next step."""
    random = np.random.default_rng(0)
    gradient = tf.constant(random.standard_normal((1, SIZE)).astype(np.float32))
    residual = tf.Variable(tf.zeros([SIZE]))
    expected = np.zeros(SIZE, np.float32)

    @tf.function
    def step():
        values, indices, new_residual, _ = ops.feedback_topk(gradient, residual, 1000)
        residual.assign(new_residual)
        return values, indices

    for _ in range(steps):
        values, indices = step()
        expected = gradient.numpy()[0] + expected
        np.testing.assert_array_equal(values, expected[indices.numpy()])
        expected[indices.numpy()] = 0
        np.testing.assert_array_equal(residual, expected)


def test_a_variable_that_shares_an_output_may_be_changed_in_place():
    variable = tf.Variable(tf.zeros([SIZE]))
    total = summed(1)
    variable.assign(total)
    variable.assign_add(tf.ones([SIZE]))
    np.testing.assert_array_equal(total, np.full(SIZE, 2.0))
    np.testing.assert_array_equal(summed(5), np.full(SIZE, 10.0))
    np.testing.assert_array_equal(variable, np.full(SIZE, 3.0))


def test_an_output_belongs_to_its_holders_alone():
    """A following operation writes into its memory, which it must not do while something else refers to it."""

    @tf.function
    def step(parts):
        total, _ = ops.sum_parts(parts)
        mean, _ = ops.mean(total, 2, tf.float32)
        return ops.mean(mean, 2, tf.float32)[0], mean

    for _ in range(4):
        quarter, half = step(tf.ones([2, SIZE]))
        np.testing.assert_array_equal(half, np.full(SIZE, 1.0))
        np.testing.assert_array_equal(quarter, np.full(SIZE, 0.5))


def test_an_output_outlives_its_operation():
    graph = tf.function(lambda parts: ops.sum_parts(parts)[0])
    total = graph(tf.ones([2, SIZE]))
    del graph
    gc.collect()
    np.testing.assert_array_equal(total, np.full(SIZE, 2.0))
