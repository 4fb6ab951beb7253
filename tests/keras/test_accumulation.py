"""Gradients of several backward passes on one rank, combined as Horovod does."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from tests.keras.training import GRADIENTS, saved, sgd, trained


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_gradients_of_several_passes_are_added_up(passes, averaged):
    optimizer = hvd.DistributedOptimizer(
        sgd(momentum=0.5), backward_passes_per_step=passes, average_aggregated_gradients=averaged
    )
    weights, counts = trained(optimizer)
    expected, velocity = np.zeros(4), np.zeros(4)
    for of_step in GRADIENTS.reshape(-1, passes, 4):
        velocity = 0.5 * velocity - of_step.sum(axis=0) / (passes if averaged else 1)
        expected += velocity
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    assert counts == list(range(1, 13))  # Horovod counts each pass
    assert optimizer.exchange.step == 12 // passes


def test_a_schedule_and_the_bias_correction_of_adam_count_passes():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([5, 9], [0.5, 0.25, 0.125])
    adam = keras.optimizers.Adam(schedule, beta_1=0.5, beta_2=0.75, epsilon=1e-3)
    weights, _ = trained(hvd.DistributedOptimizer(adam, backward_passes_per_step=2))
    expected, m, v = np.zeros(4), np.zeros(4), np.zeros(4)
    for iterations in range(1, 12, 2):  # Horovod's count when it applies the second pass of a step
        gradient = GRADIENTS[iterations - 1] + GRADIENTS[iterations]
        m, v = m + (gradient - m) * 0.5, v + (gradient**2 - v) * 0.25
        rate = schedule(iterations).numpy()
        alpha = rate * np.sqrt(1 - 0.75 ** (iterations + 1)) / (1 - 0.5 ** (iterations + 1))
        expected -= alpha * m / (np.sqrt(v) + 1e-3)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_the_sum_is_clipped_and_weights_decay_once_a_step():
    optimizer = hvd.DistributedOptimizer(sgd(clipnorm=4.0, weight_decay=0.25), backward_passes_per_step=2)
    weights, _ = trained(optimizer, start=2.0)
    expected = np.full(4, 2.0)
    for of_step in GRADIENTS.reshape(-1, 2, 4):
        gradient = of_step.sum(axis=0)
        norm = np.linalg.norm(gradient)
        expected = 0.75 * expected - gradient * min(1.0, 4.0 / norm)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


@pytest.mark.parametrize("averaged", [False, True])
def test_the_residual_is_fed_back_once_a_step(averaged):
    optimizer = hvd.DistributedOptimizer(
        sgd(),
        aggregator=hvd.recipes.topk(0.25),
        backward_passes_per_step=2,
        average_aggregated_gradients=averaged,
    )
    weights, _ = trained(optimizer)
    expected, residual = np.zeros(4, "f4"), np.zeros(4, "f4")
    for of_step in GRADIENTS.reshape(-1, 2, 4):
        residual = residual + of_step.sum(axis=0) / (2 if averaged else 1)
        largest = np.argmax(np.abs(residual))
        expected[largest] -= residual[largest]
        residual[largest] = 0
    np.testing.assert_array_equal(weights, expected)
    np.testing.assert_array_equal(optimizer.exchange.residual_sum().residuals["variable"], residual)


def test_several_passes_work_in_fit_under_a_scaled_loss():
    keras.config.set_dtype_policy("mixed_float16")
    x, y = np.arange(24, dtype="f4").reshape(12, 2) / 64, np.ones((12, 1), "f4")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.25), backward_passes_per_step=3)
    model.compile(optimizer, "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    model.fit(x, y, batch_size=2, epochs=1, shuffle=False, verbose=0)
    weights = np.zeros((2, 1))
    for of_step in np.arange(12).reshape(2, 6):
        batches = [of_step[begin : begin + 2] for begin in (0, 2, 4)]
        weights = weights - 0.25 * sum(x[each].T @ (x[each] @ weights - y[each]) for each in batches)
    np.testing.assert_allclose(model.layers[0].kernel, weights, rtol=2e-2)
    assert int(optimizer.iterations) == 6 and optimizer.exchange.step == 2


def test_rows_of_embeddings_accumulate():
    table = keras.Variable(np.zeros((3, 2), "f4"), name="table")
    optimizer = hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2)
    for rows in ([2, 0], [2, 2]):
        slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant(rows), tf.constant([3, 2]))
        optimizer.apply([slices], [table])
    np.testing.assert_array_equal(table, [[-1, -1], [0, 0], [-3, -3]])


def test_both_ways_to_accumulate_are_refused():
    with pytest.raises(ValueError, match="both ask for accumulation.*sums gradients.*averages them"):
        hvd.DistributedOptimizer(sgd(gradient_accumulation_steps=2), backward_passes_per_step=4)


@pytest.mark.parametrize("passes", [0, -1, 2.0, "2", None, True])
def test_passes_are_a_number_above_zero(passes):
    with pytest.raises(ValueError, match="Expected backward_passes_per_step to be an integer of at least 1"):
        hvd.DistributedOptimizer(sgd(), backward_passes_per_step=passes)


def test_the_passes_of_a_saved_model_are_added_up_where_that_is_said_again(tmp_path):
    model, path = saved(tmp_path, backward_passes_per_step=2)
    loaded = hvd.load_model(path, backward_passes_per_step=2)
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 2
    for each in (model, loaded):
        each.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)
    for ours, theirs in zip(model.variables, loaded.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.warns(UserWarning, match="averages them, as Keras does.*backward_passes_per_step=2"):
        hvd.load_model(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        hvd.load_model(path, backward_passes_per_step=2, average_aggregated_gradients=True)
    with pytest.raises(ValueError, match="differs from the gradient_accumulation_steps=2 of the optimizer"):
        hvd.load_model(path, backward_passes_per_step=3)
