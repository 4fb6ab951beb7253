"""Between which moments variables hold a node's own weights, with all that a tape can do."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.optimizers import ahead
from hvd_sparse.optimizers.tapes import install

SHARED, OFFSET = np.array([4.0, 8.0], "f4"), np.array([1.0, 2.0], "f4")
OWN = SHARED - OFFSET


def begun(recipe=None):
    """An optimizer whose node is ahead, and its variable."""
    hvd.init(local_size=1)
    recipe = recipe or hvd.recipes.updates(hvd.recipes.topk(0.5), ahead=True)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), aggregator=recipe)
    variable = keras.Variable(SHARED, name="weight")
    optimizer.build([variable])
    ahead.of(optimizer).move({id(variable): tf.constant(OFFSET)})
    return optimizer, variable


def in_both(function):
    """The results of a function in eager code and of a graph, each with an optimizer of its own."""
    return [results(function, wrap) for wrap in (lambda each: each, tf.function)]


def results(function, wrap):
    optimizer, variable = begun()
    with ahead.tapes_look_ahead(lambda: [optimizer]):
        found = [np.array(each) for each in wrap(lambda: function(variable))()]
    np.testing.assert_array_equal(variable, SHARED)
    return found


def assert_read(function, *expected):
    for read in in_both(function):
        for value, wanted in zip(read, expected, strict=True):
            np.testing.assert_array_equal(value, wanted)


def value(variable):
    return tf.identity(variable.value)


def test_a_tape_sees_its_nodes_own_weights_and_nothing_else_does():
    def step(variable):
        before = value(variable)
        with tf.GradientTape() as tape:
            inside = value(variable)
            loss = tf.reduce_sum(variable * variable)
        waiting = value(variable)
        gradient = tape.gradient(loss, variable.value)
        return before, inside, waiting, gradient, value(variable)

    assert_read(step, SHARED, OWN, OWN, 2 * OWN, SHARED)


def test_each_tape_does():
    def step(variable):
        found = []
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * variable)
            found += [tape.gradient(loss, variable.value), value(variable)]
        return found

    assert_read(step, 2 * OWN, SHARED, 2 * OWN, SHARED)


def test_a_tape_inside_another_belongs_to_it():
    def step(variable):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(variable * variable)
            slope = inner.gradient(loss, variable.value)
            inside = value(variable)
            penalty = tf.reduce_sum(slope * slope)
        return inside, tape.gradient(penalty, variable.value), value(variable)

    assert_read(step, OWN, 8 * OWN, SHARED)


def test_tapes_that_record_side_by_side_are_at_the_same_weights():
    def step(variable):
        with tf.GradientTape() as first, tf.GradientTape() as second:
            loss = tf.reduce_sum(variable * variable)
        return second.gradient(loss, variable.value), first.gradient(loss, variable.value), value(variable)

    assert_read(step, 2 * OWN, 2 * OWN, SHARED)


def test_a_persistent_tape_inside_its_context():
    def step(variable):
        with tf.GradientTape(persistent=True) as tape:
            slope = tape.gradient(tf.reduce_sum(variable * variable), variable.value)
            inside = value(variable)
            penalty = tf.reduce_sum(slope * slope)
        left = value(variable)
        return inside, left, tape.gradient(penalty, variable.value), value(variable)

    assert_read(step, OWN, SHARED, 8 * OWN, SHARED)


@pytest.mark.parametrize("name", ["jacobian", "batch_jacobian"])
def test_jacobians(name):
    def step(variable):
        x = tf.ones([1, 2])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * variable
        found = tape.jacobian(y, variable.value) if name == "jacobian" else tape.batch_jacobian(y, x)
        return tf.reshape(found, [2, 2]), value(variable)

    assert_read(step, np.eye(2) if name == "jacobian" else np.diag(OWN), SHARED)


def test_a_custom_gradient_with_a_tape_of_its_own():
    def step(variable):
        @tf.recompute_grad
        def squared(x):
            return x * x * tf.reduce_sum(variable.value)

        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(squared(variable.value))
        return tape.gradient(loss, variable.value), value(variable)

    for gradient, left in in_both(step):
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(left, SHARED)


def test_a_tape_whose_gradient_is_never_taken():
    """`in_both` checks that the weights are shared at the end of the context."""

    def step(variable):
        with tf.GradientTape():
            return [value(variable)]

    for (inside,) in in_both(step):
        np.testing.assert_array_equal(inside, OWN)


def test_a_distributed_tape_and_the_documented_form():
    for wrap in (lambda each: each, hvd.DistributedGradientTape):
        optimizer, variable = begun()
        with hvd.looking_ahead(optimizer), wrap(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(variable * variable)
        np.testing.assert_array_equal(tape.gradient(loss, [variable.value])[0], 2 * OWN)
        np.testing.assert_array_equal(variable, SHARED)


def test_a_context_around_several_steps():
    optimizer, variable = begun()
    with hvd.looking_ahead(optimizer):
        for _ in range(2):
            (offset,) = ahead.offsets(optimizer)
            with tf.GradientTape() as tape:
                own = value(variable)
                loss = tf.reduce_sum(variable * variable)
            gradient = tape.gradient(loss, variable.value)
            np.testing.assert_array_equal(own, variable - offset)
            assert np.any(offset)
            optimizer.apply([gradient], [variable])


def test_several_optimizers():
    (one, first), (two, second) = begun(), begun()
    with hvd.looking_ahead(one), hvd.looking_ahead(two), tf.GradientTape() as tape:
        loss = tf.reduce_sum(first * second)
    both = tape.gradient(loss, [first.value, second.value])
    for gradient, variable in zip(both, (first, second), strict=True):
        np.testing.assert_array_equal(gradient, OWN)
        np.testing.assert_array_equal(variable, SHARED)


@pytest.mark.parametrize("graph", [False, True])
def test_an_error_in_a_tape_leaves_the_shared_weights(graph):
    optimizer, variable = begun()

    def step():
        with hvd.looking_ahead(optimizer), tf.GradientTape():
            tf.debugging.assert_equal(value(variable), SHARED)

    with pytest.raises(tf.errors.InvalidArgumentError):
        (tf.function(step) if graph else step)()
    if graph:
        ahead.of(optimizer).recover()  # as fit does
    np.testing.assert_array_equal(variable, SHARED)


def test_writes_by_slices_in_a_graph_are_noticed():
    optimizer, variable = begun()

    @tf.function
    def step():
        with hvd.looking_ahead(optimizer), tf.GradientTape() as tape:
            variable.value[0].assign(5.0)
            loss = tf.reduce_sum(variable * variable)
        optimizer.apply([tape.gradient(loss, variable.value)], [variable])

    with pytest.raises(ValueError, match="writes weight while its gradient is computed"):
        step()
    np.testing.assert_array_equal(variable, SHARED)


def test_between_exchanges_only_float32_can_join_an_update():
    hvd.init(local_size=1)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), aggregator=hvd.recipes.diloco(2))
    variable = keras.Variable(SHARED, dtype="bfloat16", name="half")
    optimizer.build([variable])
    with pytest.raises(ValueError, match="writes half \\(bfloat16\\).*needs float32"), hvd.looking_ahead(optimizer):
        variable.assign(0.5 * variable)
    np.testing.assert_array_equal(tf.cast(variable.value, tf.float32), SHARED)


def test_tapes_are_left_alone_elsewhere():
    install()  # a second time
    optimizer, variable = begun()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * variable)
    np.testing.assert_array_equal(tape.gradient(loss, variable.value), 2 * SHARED)
