"""What two ranks save and restore: slots that only some ranks have made, what is each rank's own, two optimizers."""

from __future__ import annotations

import pathlib
import shutil
import tempfile

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd

ROWS = 20


def _everywhere(value):
    """The values of all ranks, in rank order."""
    return hvd.topology.world().gather_descriptions(value, "test.values")


def _shared_folder():
    mine = tempfile.mkdtemp() if hvd.rank() == 0 else None
    return pathlib.Path(_everywhere(mine)[0])


def _values(model):
    return [np.array(each) for each in model.variables]


def _assert_same(values, others):
    """Asserts that each rank has the same bits twice; all ranks fail together, so that none waits for another."""
    apart = [
        float(np.abs(one - other).max()) for one, other in zip(values, others, strict=True) if np.any(one != other)
    ]
    every_rank = _everywhere(apart)
    assert not any(every_rank), f"by rank, the largest differences of variables: {every_rank}"


def _assert_ranks_equal(model):
    own = [each.tobytes().hex() for each in _values(model)]
    assert all(each == own for each in _everywhere(own)), "the replicas differ"


def _assert_resumes(make, data, total=4):
    """Asserts that training which is stopped halfway ends with each rank's bits of one that is not stopped."""
    directory = _shared_folder()
    ended = []
    for name, stops in (("whole", [total]), ("stopped", [total // 2, total])):
        for epochs in stops:
            keras.backend.clear_session()
            keras.utils.set_random_seed(1)
            model = make()
            callbacks = [hvd.callbacks.CheckpointCallback(directory / name)]
            model.fit(*data, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
        ended.append(_values(model))
    _assert_same(*ended)
    _everywhere(None)
    shutil.rmtree(directory, ignore_errors=True)


def _compiled(layers, aggregator=None, **options):
    model = keras.Sequential(layers)
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, **options)
    model.compile(hvd.DistributedOptimizer(optimizer, aggregator=aggregator), "mse")
    return model


def _own_data(shape=(3,)):
    x = np.random.default_rng(hvd.rank()).normal(size=(16, *shape)).astype("f4")
    return x, x.reshape(16, -1)[:, :1]


def _ids():
    generator = np.random.default_rng(0)
    return generator.integers(0, ROWS, (16, 5)), generator.normal(size=(16, 1)).astype("f4")


def _with_rows():
    layers = [keras.Input((5,), dtype="int32"), keras.layers.Embedding(ROWS, 4), keras.layers.Flatten()]
    return _compiled([*layers, keras.layers.Dense(1)], hvd.recipes.updates(hvd.recipes.hitopk(0.1)))


def control_a_dense_layer_resumes():
    _assert_resumes(lambda: _compiled([keras.Input((3,)), keras.layers.Dense(1)]), _own_data())


def rows_resume():
    """Slots of rows are made in the first step, so that only rank 0 had those of the file."""
    _assert_resumes(_with_rows, _ids())


def sums_between_two_updates_resume():
    layers = lambda: [keras.Input((3,)), keras.layers.Dense(1)]  # noqa: E731
    _assert_resumes(lambda: _compiled(layers(), gradient_accumulation_steps=3), _own_data())


def moving_statistics_resume():
    layers = keras.layers
    make = lambda: _compiled([keras.Input((3,)), layers.BatchNormalization(), layers.Dense(1)])  # noqa: E731
    _assert_resumes(make, _own_data())


def a_stateful_layer_resumes():
    recurrent = keras.layers.SimpleRNN
    make = lambda: _compiled([keras.Input((5, 2), batch_size=4), recurrent(3, stateful=True), keras.layers.Dense(1)])  # noqa: E731
    _assert_resumes(make, _own_data((5, 2)))


def a_broadcast_that_follows_leaves_what_is_each_ranks_own():
    directory = _shared_folder()

    def fit(epochs):
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        model = _compiled([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        callbacks = [hvd.callbacks.CheckpointCallback(directory), hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        model.fit(*_own_data(), batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
        return [np.array(each) for each in model.non_trainable_variables]

    _assert_same(fit(1), fit(1))
    _everywhere(None)
    shutil.rmtree(directory, ignore_errors=True)


def any_rank_loads_rows_and_broadcasts():
    """Ranks stay equal, and momentum goes on from the file, whichever rank has loaded it."""
    path = _shared_folder() / "model.keras"
    model = _with_rows()
    model.fit(*_ids(), batch_size=4, verbose=0, shuffle=False)
    hvd.consolidate(model)
    if hvd.rank() == 0:
        model.save(path)
    _everywhere(None)
    ended = []
    for root in (0, 1):
        keras.utils.set_random_seed(hvd.rank())
        recipe = hvd.recipes.updates(hvd.recipes.hitopk(0.1))
        again = hvd.load_model(path, aggregator=recipe) if hvd.rank() == root else _with_rows()
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(root)
        again.fit(*_ids(), batch_size=4, verbose=0, shuffle=False, callbacks=[broadcast])
        _assert_ranks_equal(again)
        ended.append(_values(again))
    _assert_same(*ended)


class _Two(keras.Model):
    """Two networks, each with an optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.first = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        self.second = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        self.built = True

    def compile(self, first_optimizer, second_optimizer):
        super().compile()
        self.first_optimizer, self.second_optimizer = first_optimizer, second_optimizer

    def call(self, x):
        return self.first(x)

    def train_step(self, data):
        x, y = data
        losses = {}
        for name, net in (("first", self.first), ("second", self.second)):
            with tf.GradientTape() as tape:
                losses[name] = keras.ops.mean((net(x) - y) ** 2)
            gradients = tape.gradient(losses[name], net.trainable_variables)
            getattr(self, f"{name}_optimizer").apply(gradients, net.trainable_variables)
        return losses


def _two():
    model = _Two()
    recipe = lambda: hvd.recipes.momentum_corrected(hvd.recipes.hitopk(0.2))  # noqa: E731
    optimizers = [hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9), aggregator=recipe()) for _ in "12"]
    model.compile(*optimizers)
    return model


def two_optimizers_resume():
    _assert_resumes(_two, _own_data())


def two_optimizers_are_saved():
    path = _shared_folder() / "model.weights.h5"
    keras.utils.set_random_seed(1)
    model = _two()
    model.fit(*_own_data(), batch_size=4, verbose=0, shuffle=False)
    hvd.consolidate(model)
    told = ""
    if hvd.rank() == 0:
        try:
            model.save_weights(path)
        except RuntimeError as error:
            told = str(error)
    assert _everywhere(told)[0] == "", _everywhere(told)[0]


def telemetry_of_two_optimizers():
    callback = hvd.callbacks.TelemetryCallback(every=1)
    told = ""
    try:
        _two().fit(*_own_data(), batch_size=4, verbose=0, callbacks=[callback])
    except ValueError as error:
        told = str(error)
    assert not any(_everywhere(told)), told
    assert {each.get("optimizer") for each in callback.records} == {"first_optimizer", "second_optimizer"}


class _CriticAndActor(_Two):
    """The first optimizer is the model's own."""

    def compile(self, first_optimizer, second_optimizer):
        keras.Model.compile(self, first_optimizer)
        self.first_optimizer, self.second_optimizer = first_optimizer, second_optimizer


def a_broadcast_leaves_each_optimizer_its_own_variables():
    """It built the model's own optimizer on all variables, whose slots in a file did not fit where they were read."""
    model = _CriticAndActor()
    model.compile(*(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)) for _ in "12"))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(*_own_data(), batch_size=4, verbose=0, callbacks=[callback])
    assert [len(each.variables) for each in (model.first_optimizer, model.second_optimizer)] == [2 + 4, 2 + 2]
    _assert_ranks_equal(model)
