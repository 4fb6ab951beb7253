import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd


def scaled(optimizer=None, cls=hvd.LossScaleOptimizer, **options):
    inner = hvd.DistributedOptimizer(
        optimizer or keras.optimizers.SGD(1.0, momentum=0.5), aggregator=hvd.recipes.topk(0.5)
    )
    return cls(inner, initial_scale=4.0, **options)


def state(optimizer):
    """All state that a skipped step must leave unchanged."""
    kept = optimizer.inner_optimizer.exchange.residual_sum()
    own = optimizer.inner_optimizer.exchange.rank_state().values
    variables = [np.array(variable) for variable in optimizer.inner_optimizer.variables]
    return [*variables, *own.values(), *kept.residuals.values()]


@pytest.mark.parametrize("cls", [hvd.LossScaleOptimizer, keras.optimizers.LossScaleOptimizer])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_skipped_step_leaves_all_state_to_the_bit(cls, bad):
    variable = keras.Variable([1.0, 1.0])
    optimizer = scaled(cls=cls)
    optimizer.apply([tf.constant([4.0, 8.0])], [variable])
    before, value = state(optimizer), variable.numpy()
    optimizer.apply([tf.constant([bad, 1.0])], [variable])
    np.testing.assert_array_equal(variable, value)
    for first, second in zip(state(optimizer), before, strict=True):
        np.testing.assert_array_equal(first, second)
    assert optimizer.dynamic_scale == 2.0
    optimizer.apply([tf.constant([0.0, 0.0])], [variable])
    assert optimizer.inner_optimizer.exchange.step == 2


def test_a_skipped_step_leaves_accumulated_gradients_alone():
    variable = keras.Variable([1.0, 1.0])
    optimizer = scaled(keras.optimizers.SGD(1.0, gradient_accumulation_steps=2))
    optimizer.apply([tf.constant([4.0, 8.0])], [variable])
    optimizer.apply([tf.constant([np.nan, 8.0])], [variable])
    np.testing.assert_array_equal(optimizer.inner_optimizer._accumulated_gradients[0], [1.0, 2.0])
    optimizer.apply([tf.constant([2.0, 4.0])], [variable])
    np.testing.assert_array_equal(variable, [1.0, -1.0])


def test_it_needs_a_distributed_optimizer():
    with pytest.raises(ValueError, match="Expected a distributed optimizer.*hvd.DistributedOptimizer"):
        hvd.LossScaleOptimizer(keras.optimizers.SGD(1.0))


def test_an_optimizer_with_loss_scaling_around_it_is_distributed_inside():
    outer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
    assert hvd.DistributedOptimizer(outer) is outer
    assert outer.inner_optimizer.exchange is not None


def test_it_is_saved_as_kerass():
    ours = keras.saving.serialize_keras_object(scaled(name="scale"))
    theirs = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(1.0, momentum=0.5), initial_scale=4.0, name="scale"
    )
    ours["config"]["inner_optimizer"]["config"]["name"] = theirs.inner_optimizer.name
    assert ours == keras.saving.serialize_keras_object(theirs)


def test_other_loss_scaling_is_as_before():
    variable = keras.Variable([1.0])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=4.0)
    optimizer.apply([tf.constant([np.inf])], [variable])
    assert optimizer.dynamic_scale == 2.0


def test_mixed_precision_wraps_by_itself():
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.125)), "mse")
    model.fit(np.ones((4, 2), "f4"), np.ones((4, 1), "f4"), epochs=8, verbose=0)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    skipped = np.log2(2.0**15 / model.optimizer.dynamic_scale)
    assert 0 < model.optimizer.inner_optimizer.exchange.step == 8 - skipped
