import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd


def sgd(**options):
    return keras.optimizers.SGD(1.0, **options)


def test_an_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'densty'"):
        hvd.DistributedOptimizer(sgd(), densty=0.1)


def test_an_optimizer_is_wrapped_once():
    optimizer = hvd.DistributedOptimizer(sgd())
    with pytest.raises(ValueError, match="already distributed.*wrap it once"):
        hvd.DistributedOptimizer(optimizer)


def test_only_keras_optimizers_are_wrapped():
    with pytest.raises(TypeError, match="Expected a Keras optimizer.*got str"):
        hvd.DistributedOptimizer("sgd")


def test_an_optimizer_in_use_is_refused():
    optimizer = sgd()
    optimizer.build([keras.Variable([1.0])])
    with pytest.raises(ValueError, match="already in use.*before compile.*hvd.load_model"):
        hvd.DistributedOptimizer(optimizer)


def test_a_recipe_is_needed():
    with pytest.raises(TypeError, match="Expected an aggregator.*got float"):
        hvd.DistributedOptimizer(sgd(), aggregator=0.01)


def test_a_strategy_is_refused():
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        with pytest.raises(ValueError, match="tf.distribute strategy"):
            hvd.DistributedOptimizer(sgd())


def test_state_that_no_config_holds_survives_wrapping():
    class Rate:
        def __call__(self):
            return tf.constant(0.5)

    rate = Rate()
    optimizer = sgd(weight_decay=0.5)
    optimizer.learning_rate = rate
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    hvd.DistributedOptimizer(optimizer)
    variable = keras.Variable([1.0], name="bias")
    optimizer.apply([tf.ones([1])], [variable])
    np.testing.assert_array_equal(variable, [0.5])


def test_gradient_accumulation_exchanges_once_for_all():
    variable = keras.Variable([1.0, 1.0])
    optimizer = hvd.DistributedOptimizer(sgd(gradient_accumulation_steps=2), aggregator=hvd.recipes.topk(0.5))
    optimizer.apply([tf.constant([1.0, 4.0])], [variable])
    np.testing.assert_array_equal(variable, [1.0, 1.0])
    optimizer.apply([tf.constant([1.0, 4.0])], [variable])
    np.testing.assert_array_equal(variable, [1.0, -3.0])
    assert optimizer.exchange.step == 1
    np.testing.assert_array_equal(optimizer.exchange.residual_sum().residuals[variable.path], [1.0, 0.0])


def test_variables_without_gradient_stay_as_they_are():
    used, unused = keras.Variable([1.0], name="used"), keras.Variable([1.0], name="unused")
    optimizer = hvd.DistributedOptimizer(sgd())
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([tf.ones([1]), None], [used, unused])
    np.testing.assert_array_equal([used, unused], [[0.0], [1.0]])
    with pytest.raises(ValueError, match="unused had no gradient and now has one"):
        optimizer.apply([tf.ones([1]), tf.ones([1])], [used, unused])


def test_local_variables_are_not_in_the_exchange():
    shared, local = keras.Variable([1.0], name="shared"), keras.Variable([1.0], name="local")
    optimizer = hvd.DistributedOptimizer(sgd(), aggregator=hvd.recipes.topk(0.5))
    optimizer.register_local_var(local)
    optimizer.apply([tf.ones([1]), tf.ones([1])], [shared, local])
    np.testing.assert_array_equal([shared, local], [[0.0], [0.0]])
    assert list(optimizer.exchange.residual_sum().shapes) == ["shared"]
    with pytest.raises(RuntimeError, match="before the first exchange"):
        optimizer.register_local_var(shared)


def test_all_variables_may_be_local():
    local = keras.Variable([1.0], name="local")
    optimizer = hvd.DistributedOptimizer(sgd())
    optimizer.register_local_var(local.value)
    optimizer.apply([tf.ones([1])], [local])
    np.testing.assert_array_equal(local, [0.0])


def test_local_layers_may_be_built_later():
    layer = keras.layers.Dense(2)
    model = keras.Sequential([layer, keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(sgd(), local_layers=layer), "mse")
    model.fit(np.ones((4, 3), "f4"), np.ones((4, 1), "f4"), verbose=0)
    assert len(model.optimizer.exchange.residual_sum().shapes) == 2


def test_local_layers_are_layers():
    with pytest.raises(ValueError, match="Expected local layers to be Keras layers, got str"):
        hvd.DistributedOptimizer(sgd(), local_layers=["dense"])


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16])
@pytest.mark.parametrize("as_dense", [False, True])
def test_rows_of_equal_index_are_added(dtype, as_dense):
    table = keras.Variable(np.zeros((4, 2), "f4"), dtype=dtype.name, name="table")
    optimizer = hvd.DistributedOptimizer(sgd(), sparse_as_dense=as_dense)
    rows = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype)
    optimizer.apply([tf.IndexedSlices(rows, tf.constant([2, 0, 2]), tf.constant([4, 2]))], [table])
    np.testing.assert_array_equal(tf.cast(table, tf.float32), [[-3, -4], [0, 0], [-6, -8], [0, 0]])


def test_equal_rows_count_once_in_the_squares_of_adam():
    """Keras alone squares each of two equal rows; it is their sum that must be squared."""
    table = keras.Variable(np.zeros((2, 1), "f4"), name="table")
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1.0, beta_2=0.75))
    optimizer.apply([tf.IndexedSlices(tf.ones([2, 1]), tf.constant([1, 1]), tf.constant([2, 1]))], [table])
    second_moment = optimizer._velocities[0].numpy()
    np.testing.assert_array_equal(second_moment, [[0.0], [1.0]])


@pytest.mark.parametrize("clipping", [{"clipnorm": 1.0}, {"global_clipnorm": 1.0}, {"clipvalue": 0.5}])
@pytest.mark.parametrize("recipe", [hvd.recipes.dense(), hvd.recipes.topk(1.0)])
def test_rows_are_clipped_as_the_dense_gradient(clipping, recipe):
    results = []
    for as_dense in (False, True):
        table = keras.Variable(np.zeros((4, 2), "f4"), name="table")
        optimizer = hvd.DistributedOptimizer(sgd(**clipping), aggregator=recipe, sparse_as_dense=as_dense)
        rows = tf.constant([[3.0, 0.0], [0.0, 4.0], [-3.0, 0.0]])
        optimizer.apply([tf.IndexedSlices(rows, tf.constant([2, 1, 3]), tf.constant([4, 2]))], [table])
        results.append(table.numpy())
    np.testing.assert_array_equal(*results)
    assert 0 < np.abs(results[0]).max() < 1


def test_the_epoch_reaches_a_schedule():
    variable = keras.Variable([1.0, 1.0])
    recipe = hvd.recipes.schedule([(0, hvd.recipes.topk(0.5)), (1, hvd.recipes.dense())])
    optimizer = hvd.DistributedOptimizer(sgd(), aggregator=recipe)
    optimizer.set_epoch(0)
    optimizer.apply([tf.constant([1.0, 4.0])], [variable])
    np.testing.assert_array_equal(variable, [1.0, -3.0])
    optimizer.set_epoch(1)
    optimizer.apply([tf.constant([0.0, 0.0])], [variable])
    np.testing.assert_array_equal(variable, [0.0, -3.0])


def test_variables_may_be_called_as_horovods_scripts_do():
    variable = keras.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(sgd(momentum=0.5))
    optimizer.apply([tf.ones([1])], [variable])
    assert optimizer.variables() == optimizer.variables and len(optimizer.variables) == 3


@pytest.mark.parametrize("clipping", [{}, {"global_clipnorm": 1.0}])
def test_dense_recipes_average_float64(clipping):
    variable = keras.Variable([0.0, 0.0], dtype="float64")
    optimizer = hvd.DistributedOptimizer(sgd(**clipping))
    rows = tf.IndexedSlices(tf.constant([1.0, 3.0], tf.float64), tf.constant([1, 1]), tf.constant([2]))
    optimizer.apply([rows], [variable])
    np.testing.assert_allclose(variable, [0.0, -1.0 if clipping else -4.0], rtol=1e-7)


def test_float64_and_float32_are_averaged_beside_each_other():
    wide, narrow = keras.Variable([0.0], dtype="float64"), keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(sgd())
    optimizer.apply([tf.constant([2.0], tf.float64), tf.constant([3.0])], [wide, narrow])
    assert (float(wide[0]), float(narrow[0])) == (-2.0, -3.0)


def test_a_gradient_of_float64_that_is_not_finite_is_an_error_and_leaves_everything_as_it_was():
    variables = [keras.Variable([1.0], dtype="float64", name="wide"), keras.Variable([1.0], name="narrow")]
    optimizer = hvd.DistributedOptimizer(sgd())
    optimizer.exchange.measure(hvd.Telemetry())
    optimizer.apply([tf.constant([2.0], tf.float64), tf.constant([3.0])], variables)
    assert optimizer.exchange.read_telemetry()["gradient_norm"] == pytest.approx(13**0.5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="wide"):
        optimizer.apply([tf.constant([float("nan")], tf.float64), tf.constant([3.0])], variables)
    assert (float(variables[0][0]), float(variables[1][0])) == (-1.0, -2.0)
    assert optimizer.exchange.read_telemetry()["step"] == 1


def test_sparse_recipes_refuse_float64():
    optimizer = hvd.DistributedOptimizer(sgd(), aggregator=hvd.recipes.topk(0.5))
    with pytest.raises(ValueError, match="Expected a vector of float32, float16 or bfloat16, got float64"):
        optimizer.apply([tf.ones([2], tf.float64)], [keras.Variable([0.0, 0.0], dtype="float64")])


def test_a_schedule_that_was_never_told_the_epoch_says_so():
    recipe = hvd.recipes.schedule([(0, hvd.recipes.topk(0.5))])
    optimizer = hvd.DistributedOptimizer(sgd(), aggregator=recipe)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"set_epoch\(epoch\)"):
        optimizer.apply([tf.ones([2])], [keras.Variable([1.0, 1.0])])
