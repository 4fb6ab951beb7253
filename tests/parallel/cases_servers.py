"""Sharded servers in real processes: training, shutdown, and ranks that leave."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.quantizers import TwoBits
from hvd_sparse.compression.selectors import Quantized, TopK
from hvd_sparse.compression.thresholds import SampledThreshold
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.servers.optimizer import served
from tests.parallel.cases import case, thorough
from tests.parallel.training import assert_replicas_equal, network, on_every_rank, own_data, raises, shared_folder


def served_model(optimizer, **settings):
    keras.utils.set_random_seed(hvd.rank())  # ranks must still start with the same weights
    model = network()
    model.compile(hvd.servers.ShardedServers(optimizer, **settings), "mse")
    return model


@case(ranks=(1, 2, 4))
def asynchronous_servers_learn_and_end_alike():
    chosen = SampledThreshold(0.25)
    model = served_model(keras.optimizers.Adam(0.02), push=chosen, pull=chosen, lazy=hvd.size() == 2)
    telemetry = hvd.callbacks.TelemetryCallback(shared_folder(), every=32)
    x, y = own_data()
    model.fit(x, y, batch_size=8, epochs=16, verbose=0, callbacks=[telemetry])
    member = served(model.optimizer).member
    hvd.servers.finish(model.optimizer)
    told = telemetry.records[-1]
    assert [record["step"] for record in telemetry.records] == [4 * epoch for epoch in range(1, 17)]
    assert 0.125 <= told["density_pushed"] <= 0.5
    np.testing.assert_allclose(told["bytes_pushed"], 8 * told["density_pushed"] * 64 * model.count_params())
    assert_replicas_equal(model.trainable_variables)
    told = member.telemetry()  # the server is idle by now
    assert sum(told["staleness"].values()) == told["pushes"] == told["updates"] == 64 * hvd.size()
    assert model.evaluate(x, y, verbose=0) < 0.5 * np.mean(np.square(y)), "no better than half of saying 0"


@case(ranks=(2, 4), quick=lambda ranks: ranks == 4)
def synchronous_servers_give_what_the_exchange_gives():
    """The mean of all ranks' gradients, added in rank order; for integers any order gives the same bits."""
    generator = np.random.default_rng(hvd.rank())
    x, y = generator.integers(-2, 3, (16, 4)).astype("f4"), generator.integers(-2, 3, (16, 2)).astype("f4")

    def weights(wrap):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, use_bias=False, kernel_initializer="ones")])
        model.compile(wrap(keras.optimizers.SGD(0.25)), "mse")
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        return model

    mine = weights(lambda optimizer: hvd.servers.ShardedServers(optimizer, synchronous=True))
    assert_replicas_equal(mine.trainable_variables)
    np.testing.assert_array_equal(mine.get_weights()[0], weights(hvd.DistributedOptimizer).get_weights()[0])
    assert int(mine.optimizer.iterations) == 2
    hvd.servers.finish(mine.optimizer)
    assert_replicas_equal(mine.trainable_variables)


@case(ranks=(1, 2), quick=lambda ranks: ranks == 2)
def gradients_are_ahead_by_what_was_not_pushed():
    """In a custom loop, in a graph or not, and in `fit`; between steps a model holds its copy."""
    push, (x, y) = LocalUpdates(ErrorFeedback(TopK(0.2)), ahead=True), own_data(count=8)

    def served_by(model):
        return served(model.optimizer).member.connections.copy.values

    def looking(model):
        with hvd.looking_ahead(model.optimizer), tf.GradientTape() as tape:
            where = tf.concat([tf.reshape(each, [-1]) for each in model.trainable_variables], 0)
            loss = tf.reduce_mean(tf.square(model(x) - y))
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return where

    looped, fitted = (served_model(keras.optimizers.Adam(0.05), push=push, synchronous=True) for _ in range(2))
    fitted.set_weights(looped.get_weights())
    with raises(ValueError, "needs a built optimizer"):
        tf.function(looking, autograph=False)(looped)
    looped.optimizer.build(looped.trainable_variables)
    for step in (looking, looking, tf.function(looking, autograph=False)) + 2 * (looking,):
        unsent = served(looped.optimizer).unsent().numpy()
        expected = served_by(looped) - unsent
        np.testing.assert_array_equal(step(looped).numpy(), expected)
        flat = np.concatenate([each.ravel() for each in looped.get_weights()])
        np.testing.assert_array_equal(flat, served_by(looped))
    assert np.any(unsent)
    fitted.fit(x, y, batch_size=8, epochs=5, shuffle=False, verbose=0)
    for one, other in zip(looped.get_weights(), fitted.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    for model in (looped, fitted):
        hvd.servers.finish(model.optimizer)


@case(ranks=(1, 2))
def a_model_holds_its_copy_after_each_step():
    """Also after it has loaded the published parameters, and in a custom loop, in a graph or not."""
    pull = TopK(0.1) if hvd.size() == 1 else Quantized(TopK(0.3), TwoBits())
    model = served_model(keras.optimizers.SGD(0.05), push=TopK(0.2), pull=pull)
    served_by, (x, y) = served(model.optimizer), own_data(count=8)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    between = [lambda: None, served_by.take_published, lambda: None, served_by.pause, lambda: None]
    for run in (step, tf.function(step), step):
        for meanwhile in between:
            run()
            held = np.concatenate([variable.numpy().reshape(-1) for variable in model.trainable_variables])
            np.testing.assert_array_equal(held.view(np.int32), served_by.member.connections.copy.values.view(np.int32))
            meanwhile()
    hvd.servers.finish(model.optimizer)


class Slow(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.05)


@case(ranks=(2,))
def a_slow_rank_holds_nobody_up_beyond_the_bound():
    """One of two ranks is slower: the other runs ahead as far as allowed, and finishes first."""
    model = served_model(keras.optimizers.SGD(0.01), max_staleness=3)
    x, y = own_data(count=8)
    callbacks = [Slow()] if hvd.rank() == 1 else []
    model.fit(x, y, batch_size=8, epochs=20, verbose=0, callbacks=callbacks)
    member = served(model.optimizer).member
    hvd.servers.finish(model.optimizer)
    assert max(member.shard.staleness) <= 3 + 1
    assert member.shard.pushes == 40


@case(ranks=(2,))
def servers_refuse_what_they_cannot_hold():
    with raises(ValueError, "whole variables", "Adam"):
        hvd.servers.ShardedServers(keras.optimizers.Lamb())
    with raises(ValueError, "synchronous=True", "max_staleness"):
        hvd.servers.ShardedServers(keras.optimizers.SGD(), synchronous=True, max_staleness=4)
    with raises(ValueError, "pass the compressor alone"):
        hvd.servers.ShardedServers(keras.optimizers.SGD(), pull=ErrorFeedback(TopK(0.1)))
    with raises(ValueError, "larger batches"):
        hvd.servers.ShardedServers(keras.optimizers.SGD(gradient_accumulation_steps=2))
    with raises(ValueError, "lazy=True", "Adagrad", "got Adam"):
        hvd.servers.ShardedServers(keras.optimizers.Adam(amsgrad=True), lazy=True)
    model = served_model(keras.optimizers.SGD(0.1 + hvd.rank(), momentum=0.1 * hvd.rank()))
    with raises(ValueError, "disagree", "servers' settings"):
        model.fit(*own_data(), verbose=0)


@case(ranks=(3,), quick=thorough)
def a_server_that_is_gone_is_named():
    """The server of one rank ends: the others report whose parameters are lost, and do not hang."""
    model = served_model(keras.optimizers.SGD(0.01))
    x, y = own_data(count=8)
    model.fit(x, y, batch_size=8, verbose=0)
    on_every_rank("all have begun")
    if hvd.rank() == 2:
        served(model.optimizer).member._server.close()
    with raises(Exception, "The server of rank 2 does not answer", "last save"):
        model.fit(x, y, batch_size=8, epochs=100_000, verbose=0)
    with raises(hvd.servers.ServerLostError, "rank 2"):
        hvd.servers.finish(model.optimizer)


@case(ranks=(2,))
def what_is_not_trained_is_averaged_and_what_is_published_is_evaluated():
    model = network(layers=[keras.layers.BatchNormalization()])
    model.compile(hvd.servers.ShardedServers(keras.optimizers.SGD(0.05), pull=TopK(0.1)), "mse")
    x, y = own_data()
    published, averaged = hvd.callbacks.PublishedParametersCallback(), hvd.callbacks.AverageStatisticsCallback(every=2)
    with raises(ValueError, "MetricAverageCallback waits for all ranks at the end of each epoch"):
        model.fit(x, y, verbose=0, callbacks=[hvd.callbacks.MetricAverageCallback()])
    with raises(ValueError, "CheckpointCallback waits for all ranks to save"):
        model.fit(x, y, verbose=0, callbacks=[hvd.callbacks.CheckpointCallback("unused")])
    model.fit(x + 3.0 * hvd.rank(), y, batch_size=8, epochs=3, verbose=0, callbacks=[averaged, published])
    on_every_rank("all have trained")
    published.on_test_begin()
    assert_replicas_equal(model.trainable_variables)
    moving = model.layers[1].moving_mean
    for _ in range(2):  # in the second round, all ranks have reported theirs
        moving.assign(np.full(moving.shape, hvd.rank(), "f4"))
        averaged.on_epoch_end(0)
        on_every_rank("all have told")
    np.testing.assert_array_equal(moving, np.full(moving.shape, 0.5, "f4"))
    hvd.servers.finish(model.optimizer)


@case(ranks=(2,))
def a_rank_that_is_stopped_for_a_while_goes_on():
    """Nothing is lost, and nothing is applied twice."""
    model = served_model(keras.optimizers.SGD(0.01), push=TopK(0.25), pull=TopK(0.25))
    x, y = own_data(count=8)
    model.fit(x, y, batch_size=8, epochs=10, verbose=0)
    if hvd.rank() == 1:
        subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    model.fit(x, y, batch_size=8, epochs=10, verbose=0)
    member = served(model.optimizer).member
    hvd.servers.finish(model.optimizer)
    assert member.shard.pushes == 40
    assert_replicas_equal(model.trainable_variables)


@case(ranks=(2,), quick=thorough)
def mixed_precision_loops_and_files_are_as_with_any_optimizer():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = served_model(keras.optimizers.Adam(0.02), push=TopK(0.25))
    finally:
        keras.config.set_dtype_policy("float32")
    x, y = own_data()
    model.fit(x, y, batch_size=8, epochs=16, verbose=0)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    hvd.servers.finish(model.optimizer)
    assert model.evaluate(x, y, verbose=0) < 0.5 * np.mean(np.square(y))

    model, rate = network(), keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    optimizer = hvd.servers.ShardedServers(keras.optimizers.SGD(rate, momentum=0.5, clipnorm=1.0))
    for _ in range(20):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    hvd.servers.finish(optimizer)
    np.testing.assert_allclose(optimizer.learning_rate, 0.1 * 0.5 ** (int(optimizer.iterations) / 10), rtol=1e-5)
    assert_replicas_equal(model.trainable_variables)
    model.compile(optimizer, "mse")
    path = shared_folder() / f"model{hvd.rank()}.keras"
    model.save(path)
    assert type(keras.models.load_model(path).optimizer) is keras.optimizers.SGD
