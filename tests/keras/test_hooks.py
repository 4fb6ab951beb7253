"""The hook into Keras; these tests show whether it works with a version of Keras."""

import inspect
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.keras import hooks, train_step
from hvd_sparse.keras.exchanging import exchange_of

TESTED_VERSIONS = ("3.15",)
# Evaluated when the tests are collected, before any of them has made an optimizer.
HOOKED_BY_IMPORT = hasattr(keras.Model.compile, hooks._HOOKED)
X, Y = np.linspace(-1, 1, 48, dtype="f4").reshape(16, 3), np.ones((16, 2), "f4")


def dense_model(**options):
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, **options)])


def distributed(aggregator=None, **options):
    optimizer = keras.optimizers.SGD(0.125, **options)
    return hvd.DistributedOptimizer(optimizer, aggregator=aggregator or hvd.recipes.topk(0.5))


@pytest.fixture
def a_gpu(monkeypatch):
    """Makes Keras believe that there is a device other than the CPU; on such machines it enables XLA."""
    device = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [device])


def test_this_version_of_keras_is_one_that_was_tested():
    assert keras.__version__.startswith(TESTED_VERSIONS)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("_clip_gradients", ["self", "grads"]),
        ("_apply_weight_decay", ["self", "variables"]),
        ("_backend_update_step", ["self", "grads", "trainable_variables", "learning_rate"]),
    ],
)
def test_what_is_overridden_is_there_with_these_parameters(method, parameters):
    assert list(inspect.signature(getattr(keras.optimizers.Optimizer, method)).parameters) == parameters


def test_keras_calls_the_places_in_the_order_that_the_exchange_needs():
    calls = []

    class Noting(keras.optimizers.SGD):
        def _clip_gradients(self, grads):
            calls.append("clip")
            return super()._clip_gradients(grads)

        def _apply_weight_decay(self, variables):
            calls.append("decay")

        def _backend_update_step(self, grads, trainable_variables, learning_rate):
            calls.append("update")

    variable = keras.Variable([1.0])
    optimizer = Noting(gradient_accumulation_steps=2)
    optimizer.apply([tf.ones([1])], [variable])
    assert calls == []
    optimizer.apply([tf.ones([1])], [variable])
    assert calls == ["clip", "decay", "update"]


def test_the_class_looks_as_before_to_what_saves_it():
    plain = keras.optimizers.Adam(0.25, beta_1=0.5)
    before = keras.saving.serialize_keras_object(plain)
    optimizer = hvd.DistributedOptimizer(plain)
    assert optimizer is plain
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert type(optimizer).__name__ == "Adam"
    assert keras.saving.serialize_keras_object(optimizer) == before


def test_a_registered_class_of_ones_own_is_saved_under_its_registered_name():
    @keras.saving.register_keras_serializable("tests")
    class Own(keras.optimizers.SGD):
        pass

    optimizer = hvd.DistributedOptimizer(Own(0.5))
    config = keras.saving.serialize_keras_object(optimizer)
    assert config["registered_name"] == "tests>Own"
    assert type(keras.saving.deserialize_keras_object(config)) is Own


def test_residuals_are_no_part_of_the_optimizer():
    optimizer = distributed(momentum=0.5)
    model = dense_model()
    model.compile(optimizer, "mse")
    model.fit(X, Y, verbose=0)
    assert np.abs(optimizer.exchange.residual_sum().residuals["sequential/dense/kernel"]).sum() > 0
    assert len(optimizer.variables) == 4  # iteration, learning rate, two velocities
    tracked = tf.train.Checkpoint(optimizer=optimizer).save_counter  # builds the graph of what would be saved
    assert tracked is not None
    children = [name for name, _ in tf.train.Checkpoint(optimizer=optimizer).optimizer._trackable_children().items()]
    assert not [name for name in children if "exchange" in name]


def test_weight_decay_and_clipping_follow_the_exchange():
    model = dense_model(kernel_initializer="ones", use_bias=False)
    optimizer = distributed(hvd.recipes.dense(), weight_decay=0.5, clipvalue=0.25)
    optimizer.apply([tf.constant([[1.0, -1.0], [0.125, 0.0], [0.0, 2.0]])], model.trainable_variables)
    decayed = 1 - 1 * 0.5 * 0.125
    clipped = np.array([[0.25, -0.25], [0.125, 0.0], [0.0, 0.25]])
    np.testing.assert_array_equal(model.trainable_variables[0], (decayed - 0.125 * clipped).astype("f4"))


def test_a_step_that_fails_leaves_decayed_weights_alone():
    model = dense_model(kernel_initializer="ones", use_bias=False)
    optimizer = distributed(weight_decay=0.5)
    optimizer.apply([tf.ones([3, 2])], model.trainable_variables)
    before = model.get_weights()[0], optimizer.exchange.residual_sum()
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 0"):
        optimizer.apply([tf.fill([3, 2], np.nan)], model.trainable_variables)
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    kept = optimizer.exchange.residual_sum()
    assert kept.step == before[1].step == 1
    np.testing.assert_array_equal(*(list(k.residuals.values())[0] for k in (kept, before[1])))


def test_the_import_alone_installs_the_hooks():
    """`model.compile(hvd.DistributedOptimizer(...))` looks up `compile` before there is an optimizer."""
    assert HOOKED_BY_IMPORT


def test_installing_twice_does_nothing():
    hooked = keras.Model.compile, keras.optimizers.LossScaleOptimizer.check_finite
    hooks.install()
    assert hooked == (keras.Model.compile, keras.optimizers.LossScaleOptimizer.check_finite)


def test_other_optimizers_are_compiled_as_before(a_gpu):
    model = dense_model()
    model.compile("sgd", "mse", jit_compile=True)
    assert model.jit_compile is True
    assert not train_step.is_compiled(model)


def test_explicit_xla_is_refused_with_the_remedy():
    with pytest.raises(
        ValueError, match=r"communication with other ranks cannot be compiled.*hvd.compiled_train_step\(model\)"
    ):
        dense_model().compile(distributed(), "mse", jit_compile=True)


def test_explicit_xla_is_taken_with_our_train_step():
    model = hvd.compiled_train_step(dense_model())
    model.compile(distributed(), "mse", jit_compile=True)
    assert model.jit_compile is False
    model.fit(X, Y, verbose=0)


def test_automatic_xla_keeps_the_exchange_out(a_gpu):
    model = dense_model()
    model.compile(distributed(), "mse")
    assert model.jit_compile is False
    assert train_step.is_compiled(model)


def test_automatic_xla_leaves_a_train_step_of_ones_own_uncompiled(a_gpu):
    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    model = Own([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.warns(UserWarning, match="Own has a train_step of its own"):
        model.compile(distributed(), "mse")
    assert model.jit_compile is False
    assert not train_step.is_compiled(model)


def test_on_a_machine_of_cpus_nothing_is_compiled():
    model = dense_model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.compile(distributed(), "mse")
    assert model.jit_compile is False
    assert not train_step.is_compiled(model)


def test_a_saved_model_loads_compiled_without_this_package(tmp_path):
    model = dense_model()
    model.compile(distributed(momentum=0.5), "mse")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.SGD
    for ours, theirs in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    loaded.fit(X, Y, verbose=0)


def test_a_saved_model_goes_on_distributed(tmp_path):
    model = dense_model()
    model.compile(distributed(momentum=0.5), "mse")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = hvd.load_model(tmp_path / "model.keras", aggregator=hvd.recipes.topk(0.25))
    assert loaded.optimizer.iterations == 1
    loaded.fit(X, Y, verbose=0)
    assert loaded.optimizer.iterations == 2
    assert loaded.optimizer.exchange.step == 1


def test_a_model_without_optimizer_is_not_loaded(tmp_path):
    dense_model().save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="holds no optimizer"):
        hvd.load_model(tmp_path / "model.keras")


def test_a_loaded_model_with_loss_scaling_goes_on_distributed(tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    model = dense_model()
    model.compile(distributed(), "mse")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = hvd.load_model(tmp_path / "model.keras", aggregator=hvd.recipes.topk(0.25))
    assert isinstance(loaded.optimizer, keras.optimizers.LossScaleOptimizer)
    loaded.fit(X, Y, verbose=0)
    assert exchange_of(loaded.optimizer).step == 1
