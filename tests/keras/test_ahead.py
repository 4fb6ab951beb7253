"""Gradients computed at the weights that include a node's own unsent updates."""

from __future__ import annotations

import contextlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.optimizers import ahead
from tests import simulation, threads
from tests.keras.nodes import OPTIMIZERS, F, Nodes, Slots
from tests.keras.test_local_updates import distributed, some
from tests.keras.test_momentum import RATE, SHAPES, SIZE, packed, unpacked, weights
from tests.keras.test_momentum_files import assert_it_goes_on_to_the_bit, fitted
from tests.simulation import Shape

STEPS = 20


def slopes(rank, step):
    """Coefficients (a, b) of a rank's loss, whose gradient is a w + b."""
    random = np.random.default_rng([rank, step])
    return [
        (F(0.5) * random.random(shape).astype(F), random.standard_normal(shape).astype(F)) for shape in SHAPES.values()
    ]


def stepped(optimizer, grid, steps=STEPS):
    """A rank's weights after each step, with gradients at the weights that include its own unsent updates."""
    variables = [keras.Variable(value, name=name) for name, value in zip(SHAPES, weights(), strict=True)]
    optimizer.build(variables)
    found = []
    for number in range(steps):
        with hvd.looking_ahead(optimizer):
            lines = zip(slopes(grid.world.rank, number), variables, strict=True)
            mine = [tf.constant(a) * variable + tf.constant(b) for (a, b), variable in lines]
        optimizer.apply(mine, variables)
        found.append([variable.numpy() for variable in variables])
    return found


@pytest.mark.parametrize("name", some(["Adam", "momentum", "LARS", "LAMB", "Lamb", "Muon"], "Adam", "LAMB", "Lamb"))
@pytest.mark.parametrize("kind", ["hitopk", "topk"])
@pytest.mark.parametrize(
    "ranks, local_size",
    [(4, 2), *(pytest.param(*case, marks=pytest.mark.thorough) for case in [(1, 1), (3, 3), (6, 3), (8, 4)])],
)
def test_every_step_is_that_of_numpy(kind, name, ranks, local_size):
    make, step, begins, _ = OPTIMIZERS[name]
    recipe, select = {
        "hitopk": (hvd.recipes.hitopk(0.1), simulation.searched()),
        "topk": (hvd.recipes.topk(0.1), simulation.exact),
    }[kind]

    def one_rank(grid):
        return stepped(distributed(make(), hvd.recipes.updates(recipe, ahead=True), grid, name="ahead"), grid)

    ran = threads.run(ranks, local_size, one_rank)
    simulated = Nodes(Shape(ranks, local_size), select, 0.1, kind == "topk", lambda: Slots(SIZE, step, **begins))
    expected = weights()
    for number in range(STEPS):
        vectors = []
        for rank in range(ranks):
            at = [weight - ahead for weight, ahead in zip(expected, unpacked(simulated.unsent(rank)), strict=True)]
            vectors.append(packed([a * weight + b for (a, b), weight in zip(slopes(rank, number), at, strict=True)]))
        own = [packed(expected) - simulated.unsent(node * simulated.local) for node in range(simulated.nodes)]
        for weight, update in zip(expected, unpacked(simulated.step(vectors, own)), strict=True):
            weight -= update
        for rank in range(ranks):
            for own, other in zip(ran[rank][number], expected, strict=True):
                np.testing.assert_allclose(own, other, rtol=0, atol=1e-6 * np.abs(other).max())
    assert SIZE == packed(expected).size and RATE


def of_two(model):
    """An eager train step whose optimizer runs in a graph that is built once."""
    apply = tf.function(lambda gradients: model.optimizer.apply(gradients, model.trainable_variables))

    def step(data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        apply(tape.gradient(loss, model.trainable_variables))
        return {"loss": loss}

    return step


def looking(density=0.25):
    return hvd.recipes.updates(hvd.recipes.topk(density), ahead=True)


@pytest.mark.parametrize(
    "way",
    ["graph", "eager", "our train step", "ours after compile", "loss scaling", "accumulated", "a graph in eager code"],
)
def test_fit_takes_gradients_there_and_leaves_the_shared_weights(way):
    """In a linear model, the gradient shows at which weights it was computed."""
    steps = 2 if way == "accumulated" else None
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.125, gradient_accumulation_steps=steps), aggregator=looking()
    )
    if way == "loss scaling":
        optimizer = hvd.LossScaleOptimizer(optimizer, initial_scale=8.0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.zeros((4, 1), "f4")])
    if way == "our train step":
        hvd.compiled_train_step(model)
    if way == "a graph in eager code":
        model.train_step = of_two(model)
    model.compile(optimizer, "mse", run_eagerly="eager" in way, jit_compile=False)
    if way == "graph":
        model.compile(optimizer, "mse")
    if way == "ours after compile":
        hvd.compiled_train_step(model)
    x, y = np.array([[1, 2, 4, 8]], "f4") / 8, np.array([[1]], "f4")
    shared, residual, gathered = np.zeros(4, F), np.zeros(4, F), np.zeros(4, F)
    for step in range(6):
        model.fit(x, y, verbose=0)
        at = shared - residual
        gathered += 2 * (x[0] @ at - 1) * x[0]
        if way != "accumulated" or step % 2:
            total = residual + F(0.125) * gathered / F(steps or 1)
            gathered[:] = 0
            sent = np.zeros(4, F)
            index = np.argmax(np.abs(total))
            sent[index], residual = total[index], total.copy()
            residual[index] = 0
            shared = shared - sent
        np.testing.assert_allclose(model.get_weights()[0][:, 0], shared, rtol=1e-5, atol=1e-7)
    (offset,) = ahead.offsets(model.optimizer)
    np.testing.assert_allclose(offset[:, 0], residual, rtol=1e-5, atol=1e-7)


def test_a_loop_that_does_not_look_ahead_is_told_once():
    hvd.init(local_size=1)

    def steps(look):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), aggregator=hvd.recipes.recommended(0.25))
        variable = keras.Variable(np.ones(8, F), name="w")
        optimizer.build([variable])
        for _ in range(2):
            with hvd.looking_ahead(optimizer) if look else contextlib.nullcontext():
                gradient = 2 * tf.convert_to_tensor(variable)
            optimizer.apply([gradient], [variable])

    with pytest.warns(UserWarning, match="with hvd.looking_ahead\\(optimizer\\)") as told:
        steps(look=False)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(look=True)


def convolving(eagerly):
    """The weights of a small convolutional network after three steps."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Conv2D(4, 3), keras.layers.ReLU(), keras.layers.Flatten(), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9), aggregator=looking())
    model.compile(optimizer, "mse", run_eagerly=eagerly, jit_compile=False)
    images, wanted = np.random.default_rng(2).random((2, 12, 8, 8, 1), "f4")
    model.fit(images, wanted[:, 0, :2, 0], batch_size=4, shuffle=False, verbose=0)
    return model.get_weights()


def test_graphs_of_convolutions_keep_the_shapes_of_their_weights():
    """TensorFlow folds shapes into the gradients of convolutions."""
    for graph, eager in zip(convolving(False), convolving(True), strict=True):
        np.testing.assert_allclose(graph, eager, rtol=1e-4, atol=1e-6)


class Small(keras.layers.Layer):
    """Raises an error on large values."""

    def call(self, x):
        with tf.control_dependencies(
            [tf.debugging.assert_less(tf.where(tf.math.is_nan(x), 0.0, x), 100.0, message="too large")]
        ):
            return tf.identity(x)


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("value, told", [(np.nan, "Nothing was written"), (1000.0, "too large")])
def test_a_step_that_fails_leaves_the_shared_weights(value, told, eagerly):
    """It fails in the exchange, or in the forward pass, while the weights are lowered."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), aggregator=looking())
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, use_bias=False), Small()])
    model.compile(optimizer, "mse", run_eagerly=eagerly)
    fitted(model)
    before = model.get_weights()[0]
    assert any(np.any(offset) for offset in ahead.offsets(optimizer))
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match=told):
            model.fit(np.full((4, 2), value, "f4"), np.ones((4, 4), "f4"), batch_size=4, verbose=0)
        np.testing.assert_array_equal(model.get_weights()[0], before)


def test_a_stopped_run_goes_on_to_the_bit(tmp_path):
    assert_it_goes_on_to_the_bit(looking(), tmp_path, 2, 4)


def test_it_does_nothing_where_the_recipe_does_not_look_ahead():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), aggregator=hvd.recipes.topk(0.25))
    variable = keras.Variable(np.ones(4, "f4"))
    optimizer.build([variable])
    with hvd.looking_ahead(optimizer):
        assert ahead.of(optimizer) is None and ahead.offsets(optimizer) == []
