"""Recipes with `as_published` use the learning rate of the optimizer that applies their sums."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from tests.gpu import reference

SIZE = 50


def published():
    return hvd.recipes.sparcml(0.1, as_published=True)


def drawn(step):
    return np.random.default_rng(step).standard_normal(SIZE).astype(np.float32)


def algorithm_1(rates):
    """The model after each step, in NumPy: one rank, 5 of 50 elements."""
    model, error, models = np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32), []
    for step, rate in enumerate(np.float32(rates)):
        acc = error + rate * drawn(step)
        chosen = reference.exact(acc, 5)
        model[chosen] -= acc[chosen]
        error = acc
        error[chosen] = 0
        models.append(model.copy())
    return models


@pytest.mark.parametrize("in_graph", [True, False])
def test_the_rate_of_each_step_is_inside_the_accumulator(in_graph):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.5, 0.25, 0.125])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(schedule), aggregator=published())
    variable = keras.Variable(np.zeros(SIZE, np.float32))

    def step(gradient):
        optimizer.apply([gradient], [variable])

    run = tf.function(step) if in_graph else step
    for number, expected in enumerate(algorithm_1([0.5, 0.5, 0.25, 0.25, 0.125, 0.125])):
        run(tf.constant(drawn(number)))
        np.testing.assert_array_equal(variable.numpy(), expected)


def test_a_rate_that_is_assigned_is_used_from_then_on():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), aggregator=published())
    variable = keras.Variable(np.zeros(SIZE, np.float32))
    run = tf.function(lambda gradient: optimizer.apply([gradient], [variable]))
    for number, (rate, expected) in enumerate(zip((0.5, 0.125), algorithm_1([0.5, 0.125]), strict=True)):
        optimizer.learning_rate = rate
        run(tf.constant(drawn(number)))
        np.testing.assert_array_equal(variable.numpy(), expected)


def test_an_exchange_of_ones_own_is_told_the_rate():
    exchange = hvd.GradientExchange(published(), learning_rate=lambda: 0.5)
    variable = tf.Variable(tf.zeros([SIZE]))
    (move,) = exchange([tf.constant(drawn(0))], [variable])
    np.testing.assert_array_equal(-0.5 * move.numpy(), algorithm_1([0.5])[0])


def test_a_tape_has_no_optimizer():
    variable = tf.Variable(tf.ones([SIZE]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable**2)
    with pytest.raises(ValueError, match="no optimizer to get it from: use hvd.DistributedOptimizer"):
        hvd.DistributedGradientTape(tape, aggregator=published()).gradient(loss, [variable])


def test_rows_that_travel_as_means_are_refused():
    table = tf.Variable(tf.ones([10, 4]))
    slices = tf.IndexedSlices(tf.ones([2, 4]), tf.constant([1, 3]), tf.constant([10, 4]))
    exchange = hvd.GradientExchange(published(), learning_rate=lambda: 0.5)
    with pytest.raises(ValueError, match="returns sums.*sparse_as_dense=True"):
        exchange([slices], [table])
    dense = hvd.GradientExchange(published(), sparse_as_dense=True, learning_rate=lambda: 0.5)
    (move,) = dense([slices], [table])
    assert np.count_nonzero(move.numpy()) == 4
