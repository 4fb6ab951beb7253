"""Calls that run immediately, even while a function is traced."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.transport.eager import eagerly


def call():
    """Whether it runs immediately, and its result."""
    return tf.executing_eagerly(), int(tf.constant(2) + 3)


def test_in_eager_code_in_a_function_and_in_a_graph_of_tensorflow_1():
    told = [eagerly(call)]

    @tf.function
    def traced():
        told.append(eagerly(call))
        return tf.constant(0)

    traced()
    with tf.Graph().as_default():
        told.append(eagerly(call))
        assert not tf.executing_eagerly()
    assert told == [(True, 5)] * 3


def test_variables_may_be_made_while_a_function_is_traced_again():
    made = []

    @tf.function
    def traced(x):
        made.append(eagerly(lambda: tf.Variable(1.0), makes_variables=True))
        return x

    for shape in ([1], [2]):
        traced(tf.zeros(shape))
    assert [float(variable) for variable in made] == [1.0, 1.0]
