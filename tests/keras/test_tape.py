import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.keras import tape as tapes

RECIPE = hvd.recipes.topk(0.5)


def gradient(variables, factors, wrap=lambda tape: hvd.DistributedGradientTape(tape, RECIPE), **options):
    """The gradient of sum(factor * variable), from a new tape as in each step of a loop."""
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(factor * variable) for factor, variable in zip(factors, variables, strict=True)])
    return wrap(tape).gradient(loss, variables, **options)


@pytest.mark.parametrize("kind", [tf.Variable, keras.Variable])
def test_the_residual_outlives_the_tape_of_a_step(kind):
    variable = kind(np.zeros(2, "f4"))
    factor = tf.constant([1.0, 4.0])
    np.testing.assert_array_equal(gradient([variable], [factor])[0], [0.0, 4.0])
    np.testing.assert_array_equal(gradient([variable], [tf.constant([1.0, 0.0])])[0], [2.0, 0.0])


def test_it_works_in_a_function():
    variable = tf.Variable([0.0, 0.0])

    @tf.function
    def step(factor):
        return gradient([variable], [factor])[0]

    np.testing.assert_array_equal(step(tf.constant([1.0, 4.0])), [0.0, 4.0])
    np.testing.assert_array_equal(step(tf.constant([1.0, 0.0])), [2.0, 0.0])


def test_other_variables_have_an_exchange_of_their_own():
    one, other = tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])
    gradient([one], [tf.constant([1.0, 4.0])])
    np.testing.assert_array_equal(gradient([other], [tf.constant([1.0, 0.0])])[0], [1.0, 0.0])


def test_an_exchange_goes_when_its_variables_do():
    variable = tf.Variable([0.0, 0.0])
    gradient([variable], [tf.constant([1.0, 4.0])])
    alive = weakref.ref(next(reversed(tapes._exchanges.values())))
    del variable
    gc.collect()
    assert alive() is None


def test_an_exchange_may_be_made_once_and_passed():
    variable = tf.Variable([0.0, 0.0])
    exchange = hvd.GradientExchange(hvd.recipes.schedule([(0, RECIPE), (1, hvd.recipes.dense())]))
    exchange.set_epoch(0)
    factor = tf.constant([1.0, 4.0])
    wrap = lambda tape: hvd.DistributedGradientTape(tape, exchange)  # noqa: E731
    np.testing.assert_array_equal(gradient([variable], [factor], wrap)[0], [0.0, 4.0])
    exchange.set_epoch(1)
    np.testing.assert_array_equal(gradient([variable], [factor], wrap)[0], [2.0, 4.0])
    assert exchange.step == 2


def test_the_epoch_can_be_told_by_the_tape_of_an_eager_loop():
    variable = tf.Variable([0.0, 0.0])
    recipe = hvd.recipes.schedule([(0, RECIPE), (1, hvd.recipes.dense())])

    def at(epoch):
        def wrap(tape):
            wrapped = hvd.DistributedGradientTape(tape, recipe)
            wrapped.set_epoch(epoch)
            return wrapped

        return gradient([variable], [tf.constant([1.0, 4.0])], wrap)[0]

    np.testing.assert_array_equal(at(0), [0.0, 4.0])
    np.testing.assert_array_equal(at(1), [2.0, 4.0])
    with pytest.raises(RuntimeError, match="would run only once, during tracing"):
        tf.function(lambda: at(1))()


def test_sources_may_be_nested_and_without_gradient():
    used, unused = tf.Variable([1.0]), tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = 3.0 * used
    means = hvd.DistributedGradientTape(tape).gradient(loss, {"a": used, "b": [unused]})
    np.testing.assert_array_equal(means["a"], [3.0])
    assert means["b"] == [None]


def test_a_single_source_gives_a_single_gradient():
    variable = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = 3.0 * variable
    np.testing.assert_array_equal(hvd.DistributedGradientTape(tape).gradient(loss, variable), [3.0])


def test_the_wrapped_tape_records_and_knows_its_options():
    variable = tf.Variable([1.0])
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True, watch_accessed_variables=False)) as tape:
        tape.watch(variable)
        loss = variable * variable
    np.testing.assert_array_equal(tape.gradient(loss, [variable], [tf.constant([5.0])])[0], [10.0])
    assert [v.ref() for v in tape.watched_variables()] == [variable.ref()]
    zeros = tape.gradient(loss, [tf.Variable([1.0])], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    np.testing.assert_array_equal(zeros[0], [0.0])


def test_local_sources_are_not_exchanged():
    shared, local = tf.Variable([0.0, 0.0], name="shared"), tf.Variable([0.0, 0.0], name="local")
    factor = tf.constant([1.0, 4.0])

    def wrap(tape):
        wrapped = hvd.DistributedGradientTape(tape, RECIPE)
        wrapped.register_local_source(local)
        return wrapped

    for _ in range(2):
        means = gradient([shared, local], [factor, factor], wrap)
    np.testing.assert_array_equal(means[0], [0.0, 4.0])
    np.testing.assert_array_equal(means[1], [1.0, 4.0])


def test_local_layers_are_not_exchanged():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1), keras.layers.Dense(1)])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones([1, 1])))
    tape = hvd.DistributedGradientTape(tape, local_layers=model.layers[0])
    tape.gradient(loss, model.trainable_variables)
    exchange = next(reversed(tapes._exchanges.values()))
    assert len(exchange.residual_sum().shapes) == 2


def of_tensors(wrap, in_function=False):
    """The gradients of x * x * w with respect to a tensor x and a variable w."""
    value, variable = tf.constant([1.0, 2.0]), tf.Variable([3.0, 4.0])

    def step():
        with tf.GradientTape() as tape:
            tape.watch(value)
            loss = value * value * variable
        return wrap(tape).gradient(loss, [value, variable])

    return (tf.function(step) if in_function else step)()


@pytest.mark.parametrize("in_function", [pytest.param(False, marks=pytest.mark.thorough), True])
@pytest.mark.parametrize("recipe", [None, hvd.recipes.dense("float16"), hvd.recipes.torus2d()])
def test_tensors_may_be_sources_of_dense_recipes(recipe, in_function):
    means = of_tensors(lambda tape: hvd.DistributedGradientTape(tape, aggregator=recipe), in_function)
    np.testing.assert_array_equal(means, [[6.0, 16.0], [1.0, 4.0]])


def test_a_recipe_that_keeps_something_back_takes_variables_only():
    with pytest.raises(TypeError, match="Expected variables as sources.*belongs to a variable.*hvd.allreduce"):
        of_tensors(lambda tape: hvd.DistributedGradientTape(tape, RECIPE))


def test_rows_of_a_tensor_are_averaged_as_the_dense_gradient():
    table = tf.zeros([3, 2])
    with tf.GradientTape() as tape:
        tape.watch(table)
        loss = tf.reduce_sum(tf.gather(table, [2, 0, 2]))
    mean = hvd.DistributedGradientTape(tape).gradient(loss, table)
    np.testing.assert_array_equal(mean, [[1, 1], [0, 0], [2, 2]])


def test_local_and_global_gradients_can_be_told_apart():
    shared, local = tf.Variable([1.0]), tf.Variable([2.0])
    with tf.GradientTape() as tape:
        loss = 3.0 * shared + 4.0 * local
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(local)
    of_local, of_others = tape.get_local_and_global_gradients(loss, [shared, local], use_generic_names=True)
    assert [(source is local, float(gradient)) for source, gradient in of_local] == [(True, 4.0)]
    assert [(source is shared, float(gradient)) for source, gradient in of_others] == [(True, 3.0)]


def test_an_exchange_brings_its_own_options():
    with pytest.raises(ValueError, match="has its own options"):
        hvd.DistributedGradientTape(tf.GradientTape(), hvd.GradientExchange(), sparse_as_dense=True)
    with pytest.raises(RuntimeError, match="on the exchange that was passed"):
        hvd.DistributedGradientTape(tf.GradientTape(), hvd.GradientExchange()).register_local_source(tf.Variable(1.0))
