"""`fit` and tape loops with several ranks: models learn, and replicas stay equal bit for bit."""

from __future__ import annotations

import contextlib
import json

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.keras import train_step
from tests.parallel.cases import case, thorough
from tests.parallel.training import (
    RECIPES,
    L,
    a_gpu,
    assert_replicas_equal,
    distributed,
    network,
    on_every_rank,
    own_data,
)


def dense_and_hitopk(ranks):
    return [{"recipe": recipe} for recipe in ("dense", "hitopk")]


def is_hitopk(ranks, recipe):
    return recipe == "hitopk"


def ways_of_training(ranks):
    steps = [
        ("float32", "auto"),
        ("float32", False),
        ("mixed_float16", "auto on a GPU"),
        ("mixed_float16", "our train step"),
    ]
    ways = [{"recipe": "hitopk", "policy": policy, "jit": jit} for policy, jit in steps]
    others = [{"recipe": recipe, "policy": "float32", "jit": "auto"} for recipe in RECIPES if recipe != "hitopk"]
    return ways + others if ranks == 2 else [ways[0], others[1]]


def is_quick(ranks, recipe, policy, jit):
    return (ranks, recipe) == (4, "hitopk")


@case(ranks=(2, 4), over=ways_of_training, quick=is_quick)
def fit_learns_and_replicas_agree(recipe, policy, jit):
    hvd.init(local_size=2)
    keras.config.set_dtype_policy(policy)
    try:
        model = network(layers=[L.BatchNormalization(), L.Dropout(0.1)])
    finally:
        keras.config.set_dtype_policy("float32")
    if jit == "our train step":
        hvd.compiled_train_step(model)
    with a_gpu() if jit == "auto on a GPU" else contextlib.nullcontext():
        model.compile(distributed(aggregator=recipe), "mse", jit_compile=jit if jit is False else "auto")
    assert train_step.is_compiled(model) == (jit in ("auto on a GPU", "our train step"))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    history = model.fit(*own_data(), batch_size=8, epochs=8, verbose=0, callbacks=callbacks).history["loss"]
    assert history[-1] < 0.7 * history[0], history
    assert len({json.dumps(losses) for losses in on_every_rank(history)}) == 1
    assert_replicas_equal(model.trainable_variables, model.optimizer.variables)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (policy == "mixed_float16")


@case(ranks=(2,), over=dense_and_hitopk, quick=is_hitopk)
def several_steps_per_execution_are_as_single_ones(recipe):
    def weights(steps):
        keras.utils.set_random_seed(0)
        model = network()
        model.compile(distributed(aggregator=recipe), "mse", steps_per_execution=steps)
        model.fit(*own_data(), batch_size=4, shuffle=False, verbose=0)
        return model.get_weights()

    for single, several in zip(weights(1), weights(3), strict=True):
        np.testing.assert_array_equal(single, several)


@case(ranks=(2,), over=dense_and_hitopk, quick=is_hitopk)
def eager_and_compiled_steps_give_the_same_means(recipe):
    """Their plans differ: in eager mode, gradients are assumed to be ready in the reverse order of the variables."""

    def weights(eager):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), L.Dense(2, use_bias=False, kernel_initializer="ones")])
        model.compile(distributed(keras.optimizers.SGD(0.25), recipe), "mse", run_eagerly=eager)
        generator = np.random.default_rng(hvd.rank())
        x, y = generator.integers(-2, 3, (16, 4)).astype("f4"), generator.integers(-2, 3, (16, 2)).astype("f4")
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        return model.get_weights()

    np.testing.assert_array_equal(weights(True), weights(False))


@case(ranks=(2,), over=dense_and_hitopk, quick=is_hitopk)
def accumulated_batches_are_one_large_batch(recipe):
    """Bit for bit, since all sums of these small integers are exact."""
    generator = np.random.default_rng(hvd.rank())
    x, y = generator.integers(-2, 3, (32, 4)).astype("f4"), generator.integers(-2, 3, (32, 2)).astype("f4")

    def trained(batch, **options):
        model = keras.Sequential([keras.Input((4,)), L.Dense(2, use_bias=False, kernel_initializer="ones")])
        optimizer = distributed(keras.optimizers.SGD(0.25, **options), recipe)
        model.compile(optimizer, "mse")
        model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
        assert optimizer.exchange.step == 2
        return model.get_weights()[0], list(optimizer.exchange.residual_sum().residuals.values())

    small, small_kept = trained(4, gradient_accumulation_steps=4)
    large, large_kept = trained(16)
    np.testing.assert_array_equal(small, large)
    np.testing.assert_array_equal(small_kept, large_kept)
    assert not np.array_equal(small, np.ones((4, 2)))


@case(ranks=(2,), quick=thorough)
def an_embedding_model_learns_under_every_step():
    generator = np.random.default_rng(hvd.rank())
    x = generator.integers(0, 20, (32, 4))
    y = (x.sum(axis=1, keepdims=True) / 40).astype("f4")

    def trained(compiled, as_dense):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,), dtype="int32"), L.Embedding(20, 3), L.Flatten(), L.Dense(1)])
        model = hvd.compiled_train_step(model) if compiled else model
        model.compile(distributed(keras.optimizers.Adam(0.05), "hitopk", sparse_as_dense=as_dense), "mse")
        losses = model.fit(x, y, batch_size=8, epochs=6, verbose=0).history["loss"]
        assert losses[-1] < 0.5 * losses[0], losses
        assert_replicas_equal(model.trainable_variables, model.optimizer.variables)

    for compiled in (False, True):
        for as_dense in (False, True):
            trained(compiled, as_dense)


@case(ranks=(2,))
def last_batches_may_differ_between_ranks():
    model = network()
    model.compile(distributed(), "mse")
    x, y = own_data(16 + 3 * hvd.rank() + 1)
    model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    assert_replicas_equal(model.trainable_variables)


@case(ranks=(2,))
def loss_scaling_with_last_batches_that_differ():
    """A rank that retraces must not wait for ranks that do not."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = network()
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = distributed()
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    x, y = own_data(16 + 3 * hvd.rank() + 1)
    model.fit(x, y, batch_size=8, epochs=4, verbose=0)
    assert optimizer.exchange.step > 0
    assert_replicas_equal(model.trainable_variables)


@case(ranks=(2,))
def a_tape_loop_and_an_optimizer_give_the_same_bits():
    def loop(use_tape):
        keras.utils.set_random_seed(0)
        model = network()
        plain = keras.optimizers.SGD(0.05, momentum=0.5)
        optimizer = plain if use_tape else distributed(plain)

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            if use_tape:
                tape = hvd.DistributedGradientTape(tape, RECIPES["hitopk"])
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        x, y = own_data()
        losses = [float(step(x[at : at + 8], y[at : at + 8])) for _ in range(3) for at in range(0, 32, 8)]
        assert losses[-1] < losses[0]
        assert_replicas_equal(model.trainable_variables)
        return model.get_weights()

    for by_tape, by_optimizer in zip(loop(True), loop(False), strict=True):
        np.testing.assert_array_equal(by_tape, by_optimizer)


@case(ranks=(2,))
def two_optimizers_may_step_in_one_function():
    """As in adversarial training; both exchanges are in flight at the same time."""
    one, other = network(), network()
    first, second = distributed(aggregator="hitopk"), distributed(aggregator="topk")

    @tf.function
    def step(x, y):
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((one(x) - y) ** 2) + tf.reduce_mean((other(x) + y) ** 2)
        for model, optimizer in ((one, first), (other, second)):
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)

    for _ in range(5):
        step(*own_data())
    assert first.exchange.step == second.exchange.step == 5
    assert_replicas_equal(one.trainable_variables, other.trainable_variables)


@case(ranks=(2, 4))
def a_schedule_flushes_on_every_rank():
    hvd.init(local_size=2)
    recipe = hvd.recipes.schedule([(0, hvd.recipes.hitopk(0.05)), (2, hvd.recipes.torus2d())])
    model = network()
    model.compile(distributed(aggregator=recipe), "mse")
    kept = []

    class Note(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            residuals = self.model.optimizer.exchange.residual_sum().residuals
            kept.append(float(sum(np.abs(residual).sum() for residual in residuals.values())))

    callbacks = [hvd.callbacks.MetricAverageCallback(), Note()]
    model.fit(*own_data(), batch_size=8, epochs=4, verbose=0, callbacks=callbacks)
    assert kept[0] > 0 < kept[1] and kept[2] == 0 == kept[3]
    assert_replicas_equal(model.trainable_variables)
