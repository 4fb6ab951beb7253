"""Horovod's arguments as users' scripts pass them: all of these raised an error or were not supported."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod.tensorflow import global_process_set

import hvd_sparse as hvd


@pytest.fixture(autouse=True)
def started():
    hvd.init(local_size=1)  # given, so that recipes select
    keras.backend.clear_session()


def sgd():
    return keras.optimizers.SGD(1.0)


def step(optimizer, *gradients):
    """The values to which the optimizer moves zeros by these gradients, one after the other."""
    variable = keras.Variable(np.zeros(2, "f4"))
    for gradient in gradients:
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
    return np.asarray(variable)


def taken(wrap):
    """The gradient of 3 x from a wrapped tape."""
    variable = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = 3.0 * variable
    return wrap(tape).gradient(loss, [variable])[0]


def compiled(**options):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(sgd()), "mse", **options)
    return model


def test_compression_may_stand_fifth_in_an_optimizer():
    optimizer = hvd.DistributedOptimizer(sgd(), None, "", "", hvd.Compression.fp16)
    np.testing.assert_array_equal(step(optimizer, [1.0, 2.0]), [-1.0, -2.0])


def test_compression_may_stand_fourth_for_a_tape():
    gradient = taken(lambda tape: hvd.DistributedGradientTape(tape, "", "", hvd.Compression.fp16))
    np.testing.assert_array_equal(gradient, [3.0, 3.0])


def test_the_order_of_horovod_tensorflow_is_taken():
    optimizer = hvd.DistributedOptimizer(sgd(), "name", False, "", "", hvd.Compression.fp16)
    np.testing.assert_array_equal(step(optimizer, [1.0, 2.0]), [-1.0, -2.0])


def test_the_tape_may_be_named():
    np.testing.assert_array_equal(taken(lambda tape: hvd.DistributedGradientTape(gradtape=tape)), [3.0, 3.0])


def test_use_locking_false_is_taken():
    np.testing.assert_array_equal(step(hvd.DistributedOptimizer(sgd(), use_locking=False), [1.0, 2.0]), [-1.0, -2.0])


def test_the_process_set_of_all_ranks_is_taken():
    optimizer = hvd.DistributedOptimizer(sgd(), process_set=global_process_set)
    np.testing.assert_array_equal(step(optimizer, [1.0, 2.0]), [-1.0, -2.0])


def test_load_model_takes_no_custom_optimizers(tmp_path):
    compiled().save(tmp_path / "model.keras")
    loaded = hvd.load_model(str(tmp_path / "model.keras"), custom_optimizers=None, custom_objects=None)
    assert loaded.optimizer.exchange is not None


def test_gradients_of_several_backward_passes_are_added_up():
    optimizer = hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2)
    np.testing.assert_array_equal(step(optimizer, [1.0, 2.0], [3.0, 5.0], [9.0, 9.0]), [-4.0, -7.0])
    assert int(optimizer.iterations) == 3


def test_several_backward_passes_may_be_averaged():
    optimizer = hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2, average_aggregated_gradients=True)
    np.testing.assert_array_equal(step(optimizer, [1.0, 2.0], [3.0, 6.0]), [-2.0, -4.0])


def test_an_optimizer_adds_up_over_ranks():
    optimizer = hvd.DistributedOptimizer(sgd(), op=hvd.Sum, aggregator=hvd.recipes.topk(0.5))
    np.testing.assert_array_equal(step(optimizer, [1.0, 2.0]), [0.0, -2.0])


def test_a_tape_adds_up_over_ranks():
    np.testing.assert_array_equal(taken(lambda tape: hvd.DistributedGradientTape(tape, op=hvd.Sum)), [3.0, 3.0])


def test_float16_compression_may_stand_beside_a_recipe():
    optimizer = hvd.DistributedOptimizer(
        sgd(), compression=hvd.Compression.fp16, aggregator=hvd.recipes.hitopk(density=0.5)
    )
    assert optimizer.exchange.aggregator == hvd.recipes.hitopk(density=0.5, wire_dtype="float16")


def test_groups_are_taken():
    optimizer = hvd.DistributedOptimizer(sgd(), groups=2)
    np.testing.assert_array_equal(step(optimizer, [1.0, 2.0]), [-1.0, -2.0])


def test_a_number_of_groups_is_taken():
    gradient = taken(lambda tape: hvd.DistributedGradientTape(tape, num_groups=2))
    np.testing.assert_array_equal(gradient, [3.0, 3.0])


def test_a_predivide_factor_is_taken():
    gradient = taken(lambda tape: hvd.DistributedGradientTape(tape, gradient_predivide_factor=2.0))
    np.testing.assert_array_equal(gradient, [3.0, 3.0])


def test_adasum_is_called_by_its_name():
    from horovod.tensorflow import Adasum

    with pytest.raises(ValueError, match="hvd.Adasum.*MPI"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=Adasum)


def test_what_keras_3_dropped_from_compile_is_dropped_with_a_warning():
    with pytest.warns(UserWarning, match="experimental_run_tf_function=False"):
        model = compiled(experimental_run_tf_function=False)
    model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)


def test_layers_are_left_local_by_a_partial_optimizer():
    layer = keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((2,)), layer, keras.layers.Dense(1)])
    model.compile(hvd.PartialDistributedOptimizer(sgd(), local_layers=[layer]), "mse")
    model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    names = [name for bucket in model.optimizer.exchange.states for name, _ in bucket.spec.segments]
    assert len(names) == 2


def test_layers_are_left_local_by_a_partial_tape():
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.ones([1, 2])))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=layer)
    np.testing.assert_array_equal(tape.gradient(loss, layer.trainable_weights)[1], [1.0])


def test_gradients_of_tensors_are_averaged():
    value = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(value)
        loss = value * value
    np.testing.assert_array_equal(hvd.DistributedGradientTape(tape).gradient(loss, [value])[0], [2.0, 4.0])


def test_an_optimizer_of_the_config_of_a_distributed_one_exchanges():
    optimizer = hvd.DistributedOptimizer(sgd(), aggregator=hvd.recipes.topk(0.5))
    other = optimizer.from_config(optimizer.get_config())
    np.testing.assert_array_equal(step(other, [1.0, 2.0]), [0.0, -2.0])
