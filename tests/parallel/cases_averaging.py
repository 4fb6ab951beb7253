"""Model averaging on real ranks: evaluation and saving in `fit`, reproducible seeds, and errors that stop all ranks."""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.averaging import GradientAveraging, Lossy, ModelAveraging, Reliable, Telemetry
from tests.averaging import simulation
from tests.parallel.cases import case, thorough
from tests.parallel.training import L, assert_replicas_equal, network, on_every_rank, own_data, raises, shared_folder


def values(variables) -> list[list[float]]:
    """The exact values of variables."""
    return [np.asarray(each.numpy(), np.float64).reshape(-1).tolist() for each in variables]


def mean_of(lists: list[list[list[float]]]) -> list[np.ndarray]:
    """The mean over ranks of each rank's `values`."""
    return [np.mean(parts, axis=0) for parts in zip(*lists, strict=True)]


def compiled(optimizer, layers=()):
    keras.utils.set_random_seed(hvd.rank())
    model = network(layers=layers)
    model.compile(optimizer, "mse")
    return model


class Watch(keras.callbacks.Callback):
    """Records the model's values when an epoch begins and when it is evaluated."""

    def __init__(self):
        super().__init__()
        self.at_epoch, self.at_test = [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.at_epoch.append(values(self.model.weights))

    def on_test_batch_begin(self, batch, logs=None):
        self.at_test.append(values(self.model.weights))


@case(ranks=(2,))
def fit_evaluates_and_saves_the_mean_and_goes_on_from_each_rank_s_own():
    x, y = own_data()
    telemetry = Telemetry()
    optimizer = ModelAveraging(keras.optimizers.Adam(0.01), Lossy(0.4, seed=2), telemetry=telemetry)
    model = compiled(optimizer, layers=[L.BatchNormalization()])
    path, watch = shared_folder() / "epoch-{epoch}.keras", Watch()
    callbacks = [hvd.callbacks.MeanOfModelsCallback(), watch]
    if hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(path))
    model.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y), callbacks=callbacks, verbose=0)

    own, *others = on_every_rank(watch.at_epoch[1])
    assert own != others[0], "training was to go on from models that differ"
    assert_replicas_equal(model.weights, model.optimizer.variables[2:])
    tested = on_every_rank(watch.at_test)
    assert tested[0] == tested[1]
    for found, expected in zip(watch.at_test[0], mean_of([own, *others]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    if hvd.rank() == 0:
        saved = keras.models.load_model(str(path).format(epoch=2))
        assert values(saved.weights) == watch.at_test[-1]
        assert values(saved.optimizer.variables[2:]) == values(model.optimizer.variables[2:])
    assert telemetry.read()["round"] == 7 and telemetry.read()["distance"] > 0

    model.fit(x, y, batch_size=8, verbose=0)
    assert values(model.weights) != on_every_rank(values(model.weights))[1 - hvd.rank()]
    saving = {
        model.save: "a.h5",
        model.save_weights: "a.weights.h5",
        functools.partial(keras.saving.save_model, model): "a.keras",
    }
    for save, name in saving.items():
        with raises(RuntimeError, "their mean was not gathered since the last step"):
            save(path.with_name(name))
    before = on_every_rank(values(model.trainable_weights))
    hvd.averaging.resynchronise(optimizer)
    assert_replicas_equal(model.trainable_weights)
    for found, expected in zip(values(model.trainable_weights), mean_of(before), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    with hvd.averaging.mean(model):
        if hvd.rank() == 0:
            model.save(str(path).format(epoch=3))
            model.save_weights(path.with_suffix(".weights.h5"))


@case(ranks=(4,), quick=thorough)
def without_loss_it_is_the_exact_mean_to_the_bit():
    x, y = own_data()
    found = []
    for transport in (Reliable(), Lossy(0.0, seed=5)):
        model = compiled(ModelAveraging(keras.optimizers.SGD(0.05, 0.9), transport, every=2))
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        assert_replicas_equal(model.trainable_weights)
        found.append(values(model.trainable_weights))
    assert found[0] == found[1]
    keras.backend.clear_session()
    lone = compiled(ModelAveraging(keras.optimizers.SGD(0.05, 0.9), Lossy(1.0)))
    first = on_every_rank(values(lone.weights))[0]
    for variable, value in zip(lone.weights, first, strict=True):
        variable.assign(np.reshape(value, variable.shape))
    lone.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    local = compiled(keras.optimizers.SGD(0.05, 0.9))
    for variable, value in zip(local.weights, first, strict=True):
        variable.assign(np.reshape(value, variable.shape))
    local.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert values(local.weights) == values(lone.weights)


@case(ranks=(3, 4), quick=thorough)
def it_is_that_of_numpy_to_the_bit():
    """Compares gradient descent on given gradients, in a graph, with NumPy."""
    size, transport = 11, Lossy(0.3, seed=7)
    variables = [keras.Variable(np.zeros((2, 3), "f4")), keras.Variable(np.zeros(5, "f4"))]
    optimizer = ModelAveraging(keras.optimizers.SGD(1.0), transport, every=2, resynchronise_every=6)

    @tf.function
    def step(gradient):
        optimizer.apply([tf.reshape(gradient[:6], [2, 3]), gradient[6:]], variables)

    own, round = np.zeros((hvd.size(), size), "f4"), 0
    for number in range(8):
        gradients = simulation.vectors(hvd.size(), size, seed=number)
        step(tf.constant(gradients[hvd.rank()]))
        own = own - gradients
        if number % 2:
            probability = 0.0 if (round + 1) % 3 == 0 else transport.probability
            losses = simulation.drawn(probability, transport.seed, round, hvd.size())
            own, round = simulation.averaged(own, round, losses, rotate=True).vectors, round + 1
        held = np.concatenate([each.numpy().reshape(-1) for each in variables])
        assert held.tobytes() == own[hvd.rank()].tobytes(), number


@case(ranks=(2,), quick=thorough)
def the_guard_brings_models_together_in_a_graph():
    optimizer = ModelAveraging(keras.optimizers.SGD(1.0), Lossy(1.0), max_distance=1e6, guard_every=3)
    variable = keras.Variable(np.zeros(5, "f4"))

    @tf.function
    def step(gradient):
        optimizer.apply([gradient], [variable])

    for number in range(1, 5):
        step(tf.fill([5], float(hvd.rank())))
        first, second = on_every_rank(float(variable[0]))
        assert (first, second) == {3: (-1.5, -1.5), 4: (-1.5, -2.5)}.get(number, (0.0, -number))


@case(ranks=(2,), quick=thorough)
def several_steps_in_one_call_and_ranks_whose_settings_differ():
    x, y = own_data()
    telemetry = Telemetry()
    model = compiled(ModelAveraging(keras.optimizers.SGD(0.05), Lossy(0.3), every=2, telemetry=telemetry))
    model.compile(model.optimizer, "mse", steps_per_execution=4)
    model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    assert telemetry.read()["round"] == 3
    other = compiled(ModelAveraging(keras.optimizers.SGD(0.05), Lossy(0.1, seed=hvd.rank())))
    with raises(ValueError, "The ranks disagree on what they average: rank 1 has transport"):
        other.fit(x, y, verbose=0)


@case(ranks=(2,), quick=thorough)
def a_rank_that_skips_a_step_takes_part():
    scaled = keras.optimizers.LossScaleOptimizer(ModelAveraging(keras.optimizers.SGD(0.5)), initial_scale=2.0)
    variable = keras.Variable(np.ones(2, "f4"))

    @tf.function
    def step(gradient):
        scaled.apply([gradient], [variable])

    step(tf.constant([np.inf if hvd.rank() == 1 else 4.0, 4.0]))
    assert on_every_rank(variable.numpy().tolist()) == [[0.5, 0.5]] * 2  # the mean of 0 and 1
    assert on_every_rank(int(scaled.iterations)) == [1, 0]


@case(ranks=(2,), quick=thorough)
def a_nan_of_one_rank_ends_all_of_them_in_words():
    x, y = own_data()
    for wrap, what in ((ModelAveraging, "weights"), (GradientAveraging, "gradients")):
        model = compiled(wrap(keras.optimizers.SGD(0.05), Lossy(0.2)))
        spoiled = y * np.nan if hvd.rank() == 1 else y
        with raises(tf.errors.InvalidArgumentError, f"The {what} of rank 1 hold a NaN or an infinity"):
            model.fit(x, spoiled, batch_size=32, verbose=0)
        finite = on_every_rank([bool(np.isfinite(each.numpy()).all()) for each in model.weights])
        assert all(finite[0])


@case(ranks=(2,), quick=thorough)
def gradients_of_which_none_is_lost_are_the_mean():
    x, y = own_data()
    model = compiled(GradientAveraging(keras.optimizers.SGD(0.05), Reliable()))
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert_replicas_equal(model.weights)
    dense = compiled(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), aggregator=hvd.recipes.dense()))
    hvd.broadcast_variables(dense.weights, 0)
    dense.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    for one, other in zip(model.weights, dense.weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    lossy = compiled(GradientAveraging(keras.optimizers.SGD(0.05), Lossy(0.5)))
    lossy.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    told = on_every_rank(values(lossy.weights))
    assert told[0] != told[1]
