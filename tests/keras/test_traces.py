"""A training step is traced once: if variables are made during a trace, TensorFlow traces everything again."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse import recipes
from hvd_sparse.optimizers import ahead

X, Y = np.linspace(-1, 1, 48, dtype="f4").reshape(16, 3), np.ones((16, 2), "f4")


def exchanging(recipe):
    return lambda optimizer: hvd.DistributedOptimizer(optimizer, aggregator=recipe)


WAYS = {
    "dense": exchanging(recipes.dense()),
    "residuals": exchanging(recipes.topk(0.5)),
    "ahead": exchanging(recipes.updates(recipes.hitopk(0.5), ahead=True)),
    "servers": lambda optimizer: hvd.servers.ShardedServers(optimizer),
    "models": lambda optimizer: hvd.averaging.ModelAveraging(optimizer),
    "gradients": lambda optimizer: hvd.averaging.GradientAveraging(optimizer, hvd.averaging.Reliable()),
}


class Counted(keras.Model):
    """Counts the traces of its step."""

    traces = 0

    def train_step(self, data):
        self.traces += 1
        return super().train_step(data)


@pytest.mark.parametrize("way", WAYS)
def test_a_step_is_traced_once(way):
    inputs = keras.Input((3,))
    model = Counted(inputs, keras.layers.Dense(2)(inputs))
    optimizer = WAYS[way](keras.optimizers.SGD(0.125, momentum=0.0 if way == "ahead" else 0.5))
    model.compile(optimizer, "mse")
    losses = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]
    assert model.traces == 1 and losses[1] < losses[0]
    if way == "servers":
        hvd.servers.finish(optimizer)


def test_a_loop_whose_first_step_builds_the_optimizer_looks_ahead():
    """The trace that builds the optimizer does not look ahead, so it must not be the one that runs."""
    optimizer = WAYS["ahead"](keras.optimizers.SGD(0.125))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
    lowered = []

    @tf.function
    def step():
        with hvd.looking_ahead(optimizer), tf.GradientTape() as tape:
            lowered.append(ahead.of(optimizer) is not None)
            loss = tf.reduce_mean(tf.square(model(X) - Y))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    for _ in range(2):
        step()
    assert lowered == [False, True]
