import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd

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


def living():
    """The exchanges that exist."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is hvd.GradientExchange]


def test_an_exchange_goes_when_its_variables_do():
    before = len(living())
    variable = tf.Variable([0.0, 0.0])
    gradient([variable], [tf.constant([1.0, 4.0])])
    assert len(living()) == before + 1
    del variable
    assert len(living()) == before


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
    before = living()
    tape = hvd.DistributedGradientTape(tape, local_layers=model.layers[0])
    tape.gradient(loss, model.trainable_variables)
    (exchange,) = (each for each in living() if all(each is not other for other in before))
    assert len(exchange.residual_sum().shapes) == 2


# ---- one variable that stays, and a new one for each task ----

QUARTER = hvd.recipes.topk(0.25)  # one element of two variables
RECIPES = {
    "dense": None,
    "topk": QUARTER,
    "hitopk": hvd.recipes.hitopk(0.25),
    "momentum": hvd.recipes.momentum_corrected(QUARTER, momentum=0.5),
}
PULL, NONE = tf.constant([1.0, 4.0]), tf.constant([0.0, 0.0])


def with_recipe(recipe):
    return lambda tape: hvd.DistributedGradientTape(tape, aggregator=recipe)


def sparse(variables, factors, wrap=None):
    return gradient(variables, factors, wrap or with_recipe(QUARTER))


def head(kind=tf.Variable):
    return kind(np.zeros(2, "f4"))


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("stays", [True, False])
def test_exchanges_of_heads_that_are_gone_are_gone(name, stays):
    body = tf.Variable([0.0, 0.0])
    before = len(living())
    for _ in range(8):
        variables = [body, head()] if stays else [head()]
        sparse(variables, [PULL] * len(variables), with_recipe(RECIPES[name]))
        del variables
    assert len(living()) <= before + (1 if stays and RECIPES[name] else 0)
    del body
    assert len(living()) == before


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["dense", "topk"])
def test_a_thousand_heads_leave_nothing(name):
    body, before = tf.Variable([0.0, 0.0]), len(living())
    for _ in range(1000):
        sparse([body, head()], [PULL, PULL], with_recipe(RECIPES[name]))
    assert len(living()) <= before + 1


def test_it_does_not_matter_at_which_place_the_new_variable_is():
    body, before = tf.Variable([0.0, 0.0]), len(living())
    for _ in range(2):
        sparse([body, head()], [PULL, PULL])
        sparse([head(), body], [PULL, PULL])
        sparse([head(), body, head()], [PULL, PULL, PULL])
    assert len(living()) <= before + 1


@pytest.mark.parametrize("kind", [tf.Variable, keras.Variable])
@pytest.mark.parametrize("name", ["topk", "hitopk", "momentum"])
def test_a_new_head_never_gets_what_was_not_sent_of_an_old_one(name, kind):
    body, wrap = head(kind), with_recipe(RECIPES[name])
    for _ in range(4):
        sparse([body, head(kind)], [NONE, PULL], wrap)  # 1.0 of it is not sent
        new = head(kind)
        for _ in range(2):
            np.testing.assert_array_equal(sparse([body, new], [NONE, NONE], wrap)[1], [0.0, 0.0])
        del new


@pytest.mark.parametrize("name", ["topk", "hitopk"])
def test_what_was_not_sent_of_the_body_goes_on_with_the_next_head(name):
    body, wrap, sent = tf.Variable([0.0, 0.0]), with_recipe(RECIPES[name]), np.zeros(2)
    for _ in range(3):
        sent += sparse([body, head()], [PULL, NONE], wrap)[0]
    for _ in range(3):
        sent += sparse([body, head()], [NONE, NONE], wrap)[0]
    np.testing.assert_array_equal(sent, 3 * PULL.numpy())


def test_what_was_not_sent_by_several_goes_on():
    body, other = tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])
    sparse([body, head()], [PULL, NONE])
    sparse([other, head()], [PULL, NONE])
    last = head()
    means = [sparse([body, other, last], [NONE] * 3)[:2] for _ in range(2)]
    np.testing.assert_array_equal(np.sum(means, axis=0), [[1.0, 0.0], [1.0, 0.0]])


def test_momentum_of_the_body_goes_on_with_the_next_head():
    recipe = hvd.recipes.momentum_corrected(hvd.recipes.topk(0.9), momentum=0.5)
    body, wrap = tf.Variable([0.0, 0.0]), with_recipe(recipe)
    lasting, of_one = tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])
    for factor in (PULL, NONE, NONE):
        mean = sparse([body, head()], [factor, NONE], wrap)[0]
        np.testing.assert_array_equal(mean, sparse([lasting, of_one], [factor, NONE], wrap)[0])


def test_living_sets_keep_their_own_residuals():
    """Several heads that are trained in turn."""
    body, heads = tf.Variable([0.0, 0.0]), [head(), head()]
    for each in heads:
        np.testing.assert_array_equal(sparse([body, each], [PULL, NONE])[0], [0.0, 4.0])
    for each in heads:
        np.testing.assert_array_equal(sparse([body, each], [NONE, NONE])[0], [1.0, 0.0])


def test_recipes_do_not_continue_from_each_other():
    body = tf.Variable([0.0, 0.0])
    sparse([body, head()], [PULL, NONE])
    mean = sparse([body, head()], [NONE, NONE], with_recipe(RECIPES["hitopk"]))[0]
    np.testing.assert_array_equal(mean, [0.0, 0.0])
    np.testing.assert_array_equal(sparse([body, head()], [NONE, NONE])[0], [1.0, 0.0])


def test_a_function_keeps_its_exchange_as_long_as_its_variables_live():
    body, new = tf.Variable([0.0, 0.0]), head()
    step = tf.function(lambda factor: sparse([body, new], [factor, NONE])[0])
    np.testing.assert_array_equal(step(PULL), [0.0, 4.0])
    for _ in range(5):
        sparse([body, head()], [NONE, NONE])
    gc.collect()
    np.testing.assert_array_equal(step(NONE), [1.0, 0.0])


def test_a_function_that_is_traced_for_each_head_begins_where_the_last_one_ended():
    body, before = tf.Variable([0.0, 0.0]), len(living())

    def trained(factor):
        new = head()
        return tf.function(lambda: sparse([body, new], [factor, NONE])[0])()

    np.testing.assert_array_equal(trained(PULL), [0.0, 4.0])
    gc.collect()
    np.testing.assert_array_equal(trained(NONE), [1.0, 0.0])
    assert len(living()) <= before + 1


def test_local_heads_are_forgotten_and_stay_local():
    body, before = tf.Variable([0.0, 0.0]), len(living())
    for _ in range(5):
        local = head()

        def wrap(tape, local=local):
            wrapped = hvd.DistributedGradientTape(tape, QUARTER)
            wrapped.register_local_source(local)
            return wrapped

        np.testing.assert_array_equal(sparse([body, local], [NONE, PULL], wrap)[1], [1.0, 4.0])
        del local, wrap
    assert len(living()) <= before + 1


def test_a_variable_may_become_local():
    body, variable = tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])
    np.testing.assert_array_equal(sparse([body, variable], [NONE, PULL])[1], [0.0, 4.0])

    def wrap(tape):
        wrapped = hvd.DistributedGradientTape(tape, QUARTER)
        wrapped.register_local_source(variable)
        return wrapped

    np.testing.assert_array_equal(sparse([body, variable], [NONE, PULL], wrap)[1], [1.0, 4.0])


@pytest.mark.parametrize("layer", [keras.layers.Dense(2), None])
def test_local_layers_with_new_heads(layer):
    body = keras.layers.Dense(2)
    body.build([None, 2])
    before = len(living())
    for _ in range(4):
        last = keras.layers.Dense(2)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(last(body(tf.constant([[1.0, 1.0]]))))
        wrapped = hvd.PartialDistributedGradientTape(tape, local_layers=last if layer is None else layer)
        means = wrapped.gradient(loss, [*body.trainable_weights, *last.trainable_weights])
        assert all(mean is not None for mean in means)
        del last, tape, wrapped, loss, means
    assert len(living()) <= before + 1


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
