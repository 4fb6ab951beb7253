"""The optimizer that averages models, with Keras and without other ranks."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.averaging import Lossy, ModelAveraging, Reliable, Telemetry
from hvd_sparse.averaging.optimizer import ModelsAveraged, averaged
from hvd_sparse.optimizers import attached
from tests.simulation import same_bits

X = np.linspace(-1, 1, 48, dtype="f4").reshape(16, 3)
Y = X.sum(axis=1, keepdims=True)
LOCAL = {
    "clipped with decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.1, name="own"),
    "moving average": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
        0.9,
        use_ema=True,
        ema_overwrite_frequency=3,
        name="own",
    ),
    "accumulating": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2, name="own"),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, name="own"), name="scaled"),
}


def model() -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((3,)), *layers])


def trained(optimizer, epochs=3, **options) -> keras.Model:
    made = model()
    made.compile(optimizer, "mse", **options)
    made.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0)
    return made


QUICK = ("clipped with decay", "scaled")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in LOCAL]
)
def test_alone_it_is_the_optimizer_itself(name):
    own, wrapped = trained(LOCAL[name]()), trained(ModelAveraging(LOCAL[name](), Lossy(1.0), every=2))
    for one, other in zip(
        [*own.weights, *own.optimizer.variables], [*wrapped.weights, *wrapped.optimizer.variables], strict=True
    ):
        same_bits(other.numpy(), one.numpy())
    assert type(wrapped.optimizer).__name__ == type(own.optimizer).__name__
    assert wrapped.optimizer.get_config() == own.optimizer.get_config()


@pytest.mark.parametrize("passes, every, rounds", [(None, 1, 6), (None, 4, 1), (2, 1, 3), (2, 3, 1)])
def test_rounds_follow_steps_that_are_applied(passes, every, rounds):
    telemetry = Telemetry()
    optimizer = ModelAveraging(
        keras.optimizers.SGD(0.1, gradient_accumulation_steps=passes), every=every, telemetry=telemetry
    )
    variable = keras.Variable(np.ones(3, "f4"))
    for _ in range(6):
        optimizer.apply([tf.ones(3)], [variable])
    assert telemetry.read()["round"] == rounds - 1


def test_it_works_in_a_loop_of_one_s_own_that_is_a_graph():
    optimizer = ModelAveraging(
        keras.optimizers.SGD(0.5), every=2, resynchronise_every=4, max_distance=1.0, guard_every=1
    )
    variable = keras.Variable(np.ones(3, "f4"))

    @tf.function
    def step():
        optimizer.apply_gradients([(tf.ones(3), variable)])

    for _ in range(5):
        step()
    same_bits(variable.numpy(), np.full(3, -1.5, "f4"))
    assert averaged(optimizer).calls == int(optimizer.iterations) == 5


def test_a_skipped_step_is_a_round_too():
    telemetry = Telemetry()
    optimizer = keras.optimizers.LossScaleOptimizer(
        ModelAveraging(keras.optimizers.SGD(0.5), telemetry=telemetry), initial_scale=2.0
    )
    variable = keras.Variable(np.ones(2, "f4"))

    @tf.function
    def step(gradient):
        optimizer.apply([gradient], [variable])

    step(tf.constant([2.0, np.inf]))
    assert telemetry.read()["round"] == 0 and int(optimizer.iterations) == 0
    step(tf.constant([1.0, 1.0]))  # the scale is 1 by now
    assert telemetry.read()["round"] == 1 and int(optimizer.iterations) == 1
    same_bits(variable.numpy(), np.full(2, 0.5, "f4"))


def test_a_model_compiled_by_xla_leaves_the_averaging_outside():
    telemetry = Telemetry()
    made = hvd.compiled_train_step(model())
    made.compile(ModelAveraging(keras.optimizers.SGD(0.1), telemetry=telemetry), "mse")
    made.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    assert telemetry.read()["round"] == 1
    with pytest.raises(ValueError, match="communication with other ranks cannot be compiled"):
        model().compile(ModelAveraging(keras.optimizers.SGD(0.1)), "mse", jit_compile=True)


def test_a_nan_is_an_error_in_words_and_stays_where_it_is():
    made = model()
    made.compile(ModelAveraging(keras.optimizers.SGD(0.1), Lossy(0.5)), "mse")
    with pytest.raises(tf.errors.InvalidArgumentError, match="weights of rank 0 hold a NaN .* rate that is too high"):
        made.fit(X, Y * np.nan, verbose=0)


def test_a_loaded_optimizer_goes_on_and_takes_part(tmp_path):
    trained(ModelAveraging(keras.optimizers.Adam(0.1))).save(tmp_path / "model.keras")
    own, wrapped = (keras.models.load_model(tmp_path / "model.keras") for _ in range(2))
    assert ModelAveraging(wrapped.optimizer, telemetry=(telemetry := Telemetry())) is wrapped.optimizer
    for each in (own, wrapped):
        each.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    for one, other in zip(own.weights, wrapped.weights, strict=True):
        same_bits(other.numpy(), one.numpy())
    assert int(wrapped.optimizer.iterations) == 16 and telemetry.read()["round"] == 3


def test_the_mean_is_put_and_taken_back():
    made = trained(ModelAveraging(keras.optimizers.Adam(0.1)))
    held = [*made.weights, *made.optimizer.variables]
    before = [each.numpy() for each in held]
    with hvd.averaging.mean(made) as mean:
        assert mean.is_of_now
        made.weights[0].assign(np.zeros((3, 4)))
    for each, own in zip(held, before, strict=True):
        same_bits(each.numpy(), own)
    with pytest.raises(RuntimeError, match="was trained while it held the mean"), hvd.averaging.mean(made):
        made.fit(X, Y, verbose=0)
    mean = hvd.averaging.mean(made.optimizer)
    made.fit(X, Y, verbose=0)
    with pytest.raises(RuntimeError, match="trained after their mean was gathered"):
        mean.put()


def test_resynchronising_and_closing_need_such_an_optimizer():
    optimizer = ModelAveraging(keras.optimizers.SGD(0.1))
    hvd.averaging.close(optimizer)
    with pytest.raises(RuntimeError, match="Averaging has not started"):
        hvd.averaging.resynchronise(optimizer)
    for call in (hvd.averaging.resynchronise, hvd.averaging.mean, hvd.averaging.close):
        with pytest.raises(ValueError, match="Expected an optimizer that averages models, got SGD"):
            call(keras.optimizers.SGD(0.1))


def test_what_averages_is_known():
    optimizer = ModelAveraging(keras.optimizers.SGD(0.1))
    for each in (optimizer, keras.optimizers.LossScaleOptimizer(optimizer)):
        assert isinstance(attached.to(each), ModelsAveraged)
    assert attached.to(keras.optimizers.SGD(0.1)) is None and attached.to("sgd") is None


@pytest.mark.parametrize(
    "wrap",
    [hvd.DistributedOptimizer, hvd.servers.ShardedServers, ModelAveraging],
    ids=["distributed", "served", "averaged"],
)
def test_an_optimizer_is_wrapped_once(wrap):
    with pytest.raises(ValueError, match="already distributed"):
        ModelAveraging(wrap(keras.optimizers.SGD(0.1)))
    with pytest.raises(ValueError, match="already"):
        wrap(ModelAveraging(keras.optimizers.SGD(0.1)))


@pytest.mark.parametrize(
    "options, kind, told",
    [
        ({"transport": "udp"}, TypeError, "Expected a transport, such as hvd.averaging.Lossy"),
        ({"every": 0}, ValueError, "every of at least 1, got 0"),
        ({"guard_every": 0}, ValueError, "guard_every of at least 1, got 0"),
        ({"max_distance": 0.0}, ValueError, "max_distance above 0, or None, got 0.0"),
        ({"every": 4, "resynchronise_every": 6}, ValueError, "to be a multiple of 4, or None, got 6"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, kind, told):
    with pytest.raises(kind, match=told):
        ModelAveraging(keras.optimizers.SGD(0.1), **options)
    with pytest.raises(TypeError, match="Expected a Keras optimizer"):
        ModelAveraging("sgd")


def test_gradients_that_are_averaged_alone_are_the_optimizer_s_own():
    own = trained(keras.optimizers.SGD(0.1, momentum=0.9))
    wrapped = trained(hvd.averaging.GradientAveraging(keras.optimizers.SGD(0.1, momentum=0.9), Reliable()))
    for one, other in zip(own.weights, wrapped.weights, strict=True):
        same_bits(other.numpy(), one.numpy())


def test_a_nan_in_averaged_gradients_leaves_weights_and_count_as_they_were():
    model = trained(hvd.averaging.GradientAveraging(keras.optimizers.AdamW(0.1, weight_decay=0.1), Reliable()))
    weights, steps = [each.numpy() for each in model.trainable_variables], int(model.optimizer.iterations)
    with pytest.raises(tf.errors.InvalidArgumentError, match="gradients of rank 0 hold a NaN"):
        model.fit(X, Y * np.nan, verbose=0)
    for before, after in zip(weights, model.trainable_variables, strict=True):
        same_bits(after.numpy(), before)
    assert int(model.optimizer.iterations) == steps


def test_gradients_are_averaged_where_one_is_one_step():
    for refused in (
        keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
    ):
        with pytest.raises(ValueError, match="without loss scaling and without gradient_accumulation"):
            hvd.averaging.GradientAveraging(refused, Reliable())
    scaled = keras.optimizers.LossScaleOptimizer(hvd.averaging.GradientAveraging(keras.optimizers.SGD(0.1), Reliable()))
    with pytest.raises(ValueError, match="does not support loss scaling"):
        scaled.apply([tf.ones(2)], [keras.Variable(np.ones(2, "f4"))])


def test_the_callback_needs_such_an_optimizer():
    made = model()
    made.compile(keras.optimizers.SGD(0.1), "mse")
    with pytest.raises(ValueError, match="compiled with hvd.averaging.ModelAveraging"):
        made.fit(X, Y, callbacks=[hvd.callbacks.MeanOfModelsCallback()], verbose=0)
