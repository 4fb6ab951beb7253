"""Recipes that are ahead lost what a train step wrote to weights, and let it read a node's own weights.

One rank trains a linear model of four weights, compared with NumPy. A quarter of the updates is sent, or all of them in
every second step.
"""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd

F = np.float32
X, Y = np.array([[1, 2, 4, 8]], F) / 8, np.array([[1]], F)
RATE, STEPS = F(0.125), 6
RECIPES = {
    "sparse": lambda: hvd.recipes.updates(hvd.recipes.topk(0.25), ahead=True),
    "every second step": lambda: hvd.recipes.diloco(every=2, rate=1.0, momentum=0.0),
}


class Linear(keras.Sequential):
    """Its train step halves the weights at one place, and adds up what it reads there."""

    where = "nowhere"
    times = 1

    def at(self, place):
        (weight,) = self.trainable_variables
        if place == self.where:
            self.seen.assign_add(tf.convert_to_tensor(weight))
            weight.assign(0.5 * weight)

    def train_step(self, data):
        x, y = data
        for _ in range(self.times):
            self.at("before the tape")
            with tf.GradientTape() as tape:
                self.at("in the tape")
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.at("after the gradient")
            self.optimizer.apply(gradients, self.trainable_variables)
            self.at("after the update")
        return {"loss": loss}


def linear(recipe, where="nowhere", times=1, rate=RATE, **options):
    hvd.init(local_size=1)
    model = Linear([keras.Input((4,)), keras.layers.Dense(1, use_bias=False, name="only")])
    model.seen = tf.Variable(tf.zeros([4, 1]), trainable=False)
    model.set_weights([np.array([[1], [-1], [0.5], [0.25]], F)])
    model.where, model.times = where, times
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(float(rate)), aggregator=RECIPES[recipe]())
    model.compile(optimizer, **options)
    return model


def simulated(recipe, where, steps):
    """The shared weights after these steps, and the sum of what was read."""
    shared, unsent, seen = np.array([1, -1, 0.5, 0.25], F), np.zeros(4, F), np.zeros(4, F)
    for step in range(steps):
        if where == "before the tape":
            seen += shared
            shared = shared / 2
        own = shared - unsent
        if where == "in the tape":
            if recipe == "sparse":  # the variable is never ahead
                seen += shared
                own = shared = shared / 2
            else:
                seen += own
                own = own / 2
                unsent = shared - own
        gradient = 2 * (X[0] @ own - 1) * X[0]
        if where == "after the gradient":
            seen += shared
            shared = shared / 2
        total, sent = unsent + RATE * gradient, np.zeros(4, F)
        if recipe == "sparse":
            index = np.argmax(np.abs(total))
            sent[index] = total[index]
        elif step % 2:
            sent = total.copy()
        shared, unsent = shared - sent, total - sent
        if where == "after the update":
            seen += shared
            shared = shared / 2
    return shared, seen


def assert_it_is_that_of_numpy(model, recipe, where, steps=STEPS):
    shared, seen = simulated(recipe, where, steps)
    np.testing.assert_allclose(model.get_weights()[0][:, 0], shared, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(model.seen[:, 0], seen, rtol=1e-5, atol=1e-7)


def fitted(model, epochs=STEPS):
    model.fit(X, Y, epochs=epochs, verbose=0)
    return model


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("where", ["nowhere", "after the update"])
def test_control_without_writes_before_the_update(where, recipe, eagerly):
    model = linear(recipe, where, run_eagerly=eagerly, jit_compile=False)
    assert_it_is_that_of_numpy(fitted(model), recipe, where)


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("where", ["before the tape", "in the tape", "after the gradient"])
def test_a_step_reads_the_shared_weights_and_its_writes_are_kept(where, recipe, eagerly):
    model = linear(recipe, where, run_eagerly=eagerly, jit_compile=False)
    assert_it_is_that_of_numpy(fitted(model), recipe, where)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("where", ["before the tape", "in the tape", "after the gradient"])
def test_the_same_where_xla_compiles_the_forward_pass(where, recipe):
    model = hvd.compiled_train_step(linear(recipe, where))
    assert_it_is_that_of_numpy(fitted(model), recipe, where)


@pytest.mark.parametrize("eagerly", [False, True])
def test_each_of_several_optimizer_steps_is_ahead(eagerly):
    model = linear("sparse", times=3, run_eagerly=eagerly, jit_compile=False)
    assert_it_is_that_of_numpy(fitted(model, 2), "sparse", "nowhere", 6)


def test_xla_cannot_use_weights_after_the_update():
    model = hvd.compiled_train_step(linear("sparse", "after the update"))
    with pytest.raises(ValueError, match="uses .*only/kernel after it has applied gradients"):
        fitted(model)


def test_it_also_refuses_that_where_nothing_is_ahead():
    model = hvd.compiled_train_step(linear("sparse", "after the update"))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.125)))
    with pytest.raises(ValueError, match="uses .*only/kernel after it has applied gradients"):
        fitted(model)


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_write_that_begins_too_late_is_an_error_and_leaves_the_shared_weights(eagerly):
    model = fitted(linear("sparse", run_eagerly=eagerly, jit_compile=False), 2)
    shared, _ = simulated("sparse", "nowhere", 2)
    model.where = "in the tape"
    model.compile(model.optimizer, run_eagerly=eagerly, jit_compile=False)  # so that it is traced again
    with pytest.raises(ValueError, match="writes .*only/kernel while its gradient is computed"):
        fitted(model)
    np.testing.assert_allclose(model.get_weights()[0][:, 0], shared, rtol=1e-5)


def test_a_second_step_that_is_not_ahead_is_told():
    model = linear("sparse")
    optimizer, weights = model.optimizer, model.trainable_variables
    optimizer.build(weights)

    def step(contexts):
        with contexts(optimizer), tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(X))
        optimizer.apply(tape.gradient(loss, weights), weights)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(hvd.looking_ahead)
    with pytest.warns(UserWarning, match="computed at the weights that all ranks share"):
        step(lambda _: tf.name_scope("not_ahead"))


class Two(keras.Model):
    """Two layers, each with an optimizer of its own, and a tape for each step of either."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)]) for _ in range(2)]
        self.built = True

    def compile(self, first, second):
        super().compile(jit_compile=False)
        self.first, self.second = first, second

    def call(self, x):
        return self.parts[0](x)

    def train_step(self, data):
        x, y = data
        for part, optimizer in zip(self.parts, (self.first, self.second), strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(part(x) - y))
            optimizer.apply(tape.gradient(loss, part.trainable_variables), part.trainable_variables)
        return {"loss": loss}


def test_both_optimizers_of_a_model_are_ahead():
    hvd.init(local_size=1)
    model = Two()
    for part in model.parts:
        part.set_weights([np.array([[1], [-1], [0.5], [0.25]], F)])
    make = lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(float(RATE)), aggregator=RECIPES["sparse"]())  # noqa: E731
    model.compile(make(), make())
    fitted(model)
    shared, _ = simulated("sparse", "nowhere", STEPS)
    for part in model.parts:
        np.testing.assert_allclose(part.get_weights()[0][:, 0], shared, rtol=1e-5, atol=1e-7)
