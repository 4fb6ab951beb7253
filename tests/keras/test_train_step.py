"""Forward and backward pass under XLA: equal to Keras's own step bit for bit.

The numbers are small multiples of powers of two, and with only two steps all sums are exact in any order.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd

L = keras.layers


def integers(*shape, low=-2, high=3):
    return np.random.default_rng(0).integers(low, high, shape).astype("f4")


def trained(make, x, y, compiled, **options):
    """The weights, metrics and logs after training with our train step or Keras's."""
    keras.utils.set_random_seed(0)
    model = make()
    if compiled:
        hvd.compiled_train_step(model)
    settings = {"loss": "mse", "metrics": ["mae"], **options.pop("compile", {})}
    model.compile(hvd.DistributedOptimizer(options.pop("optimizer", keras.optimizers.SGD)(0.25)), **settings)
    history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0, **options)
    return model.get_weights(), history.history


def assert_same(make, x, y, **options):
    ours, logs = trained(make, x, y, compiled=True, **options)
    keras_own, keras_logs = trained(make, x, y, compiled=False, **options)
    for first, second in zip(ours, keras_own, strict=True):
        np.testing.assert_array_equal(first, second)
    assert logs == keras_logs
    return ours


def linear(*layers, **options):
    return lambda: keras.Sequential(
        [keras.Input((3,)), *(make() for make in layers), L.Dense(2, kernel_initializer="ones", **options)]
    )


X, Y = integers(16, 3), integers(16, 2)


def test_a_dense_layer():
    assert_same(linear(), X, Y)


def test_it_is_xla_that_runs_it():
    """XLA refuses what it cannot compile; Keras's own step does not."""
    strings = lambda: keras.Sequential([keras.Input((3,)), L.Lambda(through_text), L.Dense(2)])  # noqa: E731
    trained(strings, X, Y, compiled=False)
    with pytest.raises(Exception, match="(?i)not compilable|unsupported|XLA"):
        trained(strings, X, Y, compiled=True)


def through_text(x):
    return tf.reshape(tf.strings.to_number(tf.as_string(x)), tf.shape(x))


@pytest.mark.thorough
def test_a_last_batch_that_is_smaller():
    assert_same(linear(), X[:12], Y[:12])


@pytest.mark.thorough
def test_sample_weights():
    weights = integers(16, low=0, high=3)
    plain = assert_same(linear(), X, Y)
    weighted = assert_same(linear(), X, Y, sample_weight=weights, compile={"weighted_metrics": ["mse"]})
    assert not np.array_equal(plain[0], weighted[0])


@pytest.mark.thorough
def test_class_weights():
    model = lambda: keras.Sequential([keras.Input((3,)), L.Dense(1, kernel_initializer="ones")])  # noqa: E731
    assert_same(model, X, (integers(16, 1) > 0).astype("f4"), class_weight={0: 1.0, 1: 4.0})


@pytest.mark.thorough
def test_losses_that_layers_add():
    class Adds(L.Layer):
        def call(self, inputs):
            self.add_loss(keras.ops.sum(inputs) * 0.125)
            return inputs

    def make():
        return keras.Sequential([keras.Input((3,)), L.Dense(2, kernel_initializer="ones"), Adds()])

    plain = assert_same(linear(), X, Y)
    added = assert_same(make, X, Y)
    assert not np.array_equal(plain[0], added[0])


@pytest.mark.thorough
def test_regularizers():
    assert_same(linear(kernel_regularizer=keras.regularizers.L2(0.25)), X, Y)


def test_statistics_of_batch_normalisation():
    """Means of integers over batches of 4 are exact, and so are moving averages with a momentum of one half."""
    normal = lambda: L.BatchNormalization(momentum=0.5, center=False, scale=False)  # noqa: E731

    def moving_mean(compiled):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), normal(), L.Dense(1)])
        if compiled:
            hvd.compiled_train_step(model)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
        model.fit(X, integers(16, 1), batch_size=4, epochs=1, shuffle=False, verbose=0)
        return model.layers[0].moving_mean.numpy(), model.layers[0].moving_variance.numpy()

    for first, second in zip(moving_mean(True), moving_mean(False), strict=True):
        np.testing.assert_array_equal(first, second)
    assert np.abs(moving_mean(True)[0]).max() > 0


def test_seeds_of_dropout_advance():
    model = keras.Sequential([keras.Input((64,)), L.Dropout(0.5, seed=3), L.Dense(1, kernel_initializer="ones")])
    hvd.compiled_train_step(model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    losses = [model.train_on_batch(np.ones((8, 64), "f4"), np.zeros((8, 1), "f4")) for _ in range(3)]
    assert len(set(map(float, losses))) == 3


def test_variables_without_gradient():
    class Half(L.Layer):
        def build(self, _):
            self.used = self.add_weight(shape=(), initializer="ones", name="used")
            self.unused = self.add_weight(shape=(), initializer="ones", name="unused")

        def call(self, inputs):
            return inputs * self.used

    make = lambda: keras.Sequential([keras.Input((3,)), Half(), L.Dense(2, kernel_initializer="ones")])  # noqa: E731
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        weights = assert_same(make, X, Y)
    assert weights[1] == 1.0 != weights[0]


@pytest.mark.thorough
def test_a_model_that_is_built_by_its_first_batch():
    assert_same(lambda: keras.Sequential([L.Dense(2, kernel_initializer="ones")]), X, Y)


@pytest.mark.thorough
def test_an_embedding():
    indices = np.random.default_rng(0).integers(0, 7, (16, 3))
    make = lambda: keras.Sequential([keras.Input((3,), dtype="int32"), L.Embedding(7, 2), L.Flatten(), L.Dense(1)])  # noqa: E731

    def whole():
        model = make()
        for weight in model.weights:
            weight.assign(np.arange(np.prod(weight.shape)).reshape(weight.shape) % 3 - 1)
        return model

    weights = assert_same(whole, indices, integers(16, 1))
    assert not np.array_equal(weights[0], whole().get_weights()[0])


@pytest.mark.thorough
def test_several_steps_per_execution():
    assert_same(linear(), X, Y, compile={"steps_per_execution": 2})


def test_gradient_accumulation():
    optimizer = lambda rate: keras.optimizers.SGD(rate, gradient_accumulation_steps=2)  # noqa: E731
    assert_same(linear(), X, Y, optimizer=optimizer)


def test_loss_scaling_skips_and_recovers():
    keras.config.set_dtype_policy("mixed_float16")
    model = hvd.compiled_train_step(keras.Sequential([keras.Input((1,)), L.Dense(1, kernel_initializer="ones")]))
    inner = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    model.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**17), "mse")
    model.fit(np.ones((8, 1), "f4"), np.zeros((8, 1), "f4"), batch_size=1, verbose=0)
    # 2^17 overflows float16, so the first steps halve the scale until 2 * scale fits.
    assert model.optimizer.dynamic_scale.numpy() == 2.0**14
    assert inner.iterations == 8 - 3 == inner.exchange.step


def test_eager_models_stay_eager():
    assert_same(linear(), X, Y, compile={"run_eagerly": True})


@pytest.mark.thorough
def test_evaluation_and_prediction_still_work():
    model = hvd.compiled_train_step(linear()())
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.125)), "mse")
    model.fit(X, Y, validation_data=(X, Y), verbose=0)
    assert model.predict(X, verbose=0).shape == (16, 2)


@pytest.mark.thorough
def test_it_may_follow_compile_and_a_fit():
    model = linear()()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(2.0**-6)), "mse")
    model.fit(X, Y, verbose=0)
    before = model.train_function
    assert hvd.compiled_train_step(model) is model
    model.fit(X, Y, verbose=0)
    assert model.train_function is not before
    assert model.optimizer.exchange.step == 2


def test_other_optimizers_can_be_compiled_so_too():
    model = hvd.compiled_train_step(linear()())
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    assert model.optimizer.iterations == 1


class OwnStep(keras.Sequential):
    times = 1

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        for _ in range(self.times):
            self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, "rate": self.optimizer.learning_rate.value}


def test_a_train_step_of_ones_own():
    make = lambda: OwnStep([keras.Input((3,)), L.Dense(2, kernel_initializer="ones")])  # noqa: E731
    assert_same(make, X, Y, compile={"loss": None, "metrics": None})


def test_a_train_step_that_applies_twice_is_refused():
    model = OwnStep([keras.Input((3,)), L.Dense(2)])
    model.times = 2
    hvd.compiled_train_step(model).compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.125)))
    with pytest.raises(ValueError, match="applies gradients twice"):
        model.fit(X, Y, verbose=0)


def test_a_model_with_nothing_to_train():
    model = hvd.compiled_train_step(keras.Sequential([keras.Input((2,)), L.Rescaling(2.0)]))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.125)), "mse")
    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        model.fit(Y, Y, verbose=0)


def test_the_model_can_be_saved_and_cloned(tmp_path):
    model = hvd.compiled_train_step(linear()())
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.125)), "mse")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.fit(X, Y, verbose=0)
    keras.models.clone_model(model)
