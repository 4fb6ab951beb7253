"""Errors of the operations of lars/ops.py about invalid arguments; a refused call changes nothing."""

import numpy as np
import pytest
import tensorflow as tf

from lars import ops
from tests.lars.test_ops import RULE, lists, variables
from tests.simulation import same_bits


def update(**changes):
    """Calls lars_update on small arrays, with some arguments changed by name."""
    weights, velocities, gradients = lists(11, 3, shapes=[(4, 5), (6,)])
    arguments = {
        "weights": variables(weights),
        "velocities": variables(velocities),
        "gradients": gradients,
        "ratios": [1.0, 1.0],
        "decays": [0.0, 0.0],
        "learning_rate": 0.1,
        "momentum": 0.9,
    }
    return ops.lars_update(**{**arguments, **changes})


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"weights": [np.zeros(3)]}, TypeError, r"weights\[0\] to be a tf.Variable, .*, got ndarray"),
        ({"weights": [tf.Variable([1, 2])]}, TypeError, r"weights\[0\] of float32, .* got int32"),
        ({"velocities": []}, ValueError, "velocities for each of the 2 weights, got 0"),
        ({"gradients": [np.zeros((4, 5), np.float32)]}, ValueError, "one gradient for each of the 2 weights, got 1"),
        (
            {"gradients": [np.zeros((4, 5))] * 2},
            ValueError,
            r"gradients\[0\] .* float32 \(4, 5\), got float64 \(4, 5\)",
        ),
        ({"gradients": [np.zeros((5, 4), np.float32)] * 2}, ValueError, r"gradients\[0\] like .* got float32 \(5, 4\)"),
        (
            {"gradients": [tf.IndexedSlices(tf.zeros([1, 5]), [0], [4, 5])] * 2},
            TypeError,
            r"gradients\[0\] to be a dense tensor, got tf.IndexedSlices: .* tf.convert_to_tensor",
        ),
        ({"ratios": [1.0]}, tf.errors.InvalidArgumentError, r"ratios \[2\], one for each weight, got shape \[1\]"),
        ({"decays": 0.5}, tf.errors.InvalidArgumentError, r"decays \[2\], one for each weight, got shape \[\]"),
        ({"momentum": [0.9, 0.9]}, tf.errors.InvalidArgumentError, r"momentum as one number, got shape \[2\]"),
        ({"learning_rate": tf.constant("x")}, TypeError, "learning_rate to be numbers, got string"),
    ],
)
def test_an_update_that_cannot_be_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        update(**changes)


def test_a_slot_unlike_its_weight_is_refused_and_nothing_is_changed():
    weights, gradients = lists(11, 2, shapes=[(4, 5), (6,)])
    held = variables(weights)
    slots = variables([np.zeros((4, 5), np.float32), np.zeros(7, np.float32)])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"slot 1 of weight 1 .* got float \[7\] and float \[6\]"):
        update(weights=held, velocities=slots, gradients=gradients)
    for variable, before in zip(held, weights, strict=True):
        same_bits(variable.numpy(), before)


def test_a_variable_is_updated_once():
    variable = tf.Variable(tf.zeros([3]))
    gradients = [tf.zeros([3])] * 2
    others = variables([np.zeros(3, np.float32)] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="each variable to be updated once"):
        update(weights=[variable, variable], velocities=others, gradients=gradients)
    with pytest.raises(tf.errors.InvalidArgumentError, match="each variable to be updated once"):
        update(weights=others, velocities=[variable, others[1]], gradients=gradients)


def test_a_variable_without_a_value_is_an_error_in_words():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.Variable(tf.zeros([3]))
        sums = ops.lars_partials([variable], [tf.zeros([3])], 0, 1)
        with pytest.raises(tf.errors.OpError, match="(?i)initiali|not exist"):
            session.run(sums)


@pytest.mark.parametrize("first, last", [(-1, 1), (2, 1), (0, 3), (3, 3), (-(2**62), 2**62)])
def test_a_range_that_cannot_be_is_refused(first, last):
    weights, gradients = lists(11, 2, shapes=[(4, 5), (6,)])
    held = variables(weights)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"0 <= first <= last <= 2, .* first {first} and last"):
        ops.lars_partials(held, gradients, first, last)
    bounds = tf.Variable([first, last], dtype=tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"0 <= first <= last <= 2, .* first {first} and last"):
        tf.function(lambda: ops.lars_partials(held, gradients, bounds[0], bounds[1]))()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"beta_1": 1.0}, r"beta_1 and beta_2 in \[0, 1\), got 1 and 0.999"),
        ({"beta_2": -0.1}, r"beta_1 and beta_2 in \[0, 1\), got 0.9 and -0.1"),
        ({"beta_1": float("nan")}, r"beta_1 and beta_2 in \[0, 1\), got nan"),
        ({"epsilon": -1e-3}, "epsilon of at least 0, got -0.001"),
        ({"step": 0}, "step of at least 1, as the first step has number 1, got 0"),
    ],
)
def test_numbers_of_lamb_that_cannot_be_are_refused(changes, message):
    weights, firsts, seconds, gradients = lists(12, 4, shapes=[(4,)])
    held = [variables(each) for each in (weights, firsts, seconds)]
    rule = RULE._replace(**changes)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.lamb_partials(*held, gradients, [0.0], *rule, 0, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.lamb_update(*held, gradients, [1.0], [0.0], 0.1, *rule)


def test_step_is_an_integer():
    weights, firsts, seconds, gradients = lists(12, 4, shapes=[(4,)])
    held = [variables(each) for each in (weights, firsts, seconds)]
    with pytest.raises(TypeError, match="step to be an integer, got 1.5"):
        ops.lamb_update(*held, gradients, [1.0], [0.0], 0.1, *RULE._replace(step=1.5))


def test_a_gradient_that_turns_out_unlike_its_weight_is_refused_when_it_is_there():
    held = variables([np.zeros(3, np.float32)])

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def sums(gradient):
        return ops.lars_partials(held, [gradient], 0, 1)

    assert sums(tf.ones([3])).numpy().tolist() == [[0, 3]]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"weight 0 and its gradient .* got float \[3\] and .*\[4\]"
    ):
        sums(tf.ones([4]))
