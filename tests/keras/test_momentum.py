"""Optimizers whose momentum is run by the exchange, compared with a training in NumPy."""

from __future__ import annotations

import itertools
import os
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.keras import exchanging, momentum
from hvd_sparse.optimizers import slots
from lars import LAMB, LARS
from tests import simulation, threads
from tests.lars import reference as layerwise
from tests.simulation import Shape

STEPS, RATE = 20, 0.05
SHAPES = {"matrix": (6, 7), "bias": (9,)}
SIZE = sum(int(np.prod(shape)) for shape in SHAPES.values())
ORDER = ["bias", "matrix"]  # of gradients in an eager bucket: the reverse of the variables' order
ON_ALL_GRIDS = ("Adam", "LARS", "LAMB")
EVERY_GRID = bool(os.environ.get("HVD_SPARSE_EVERY_GRID"))
GRIDS = [(1, 1, True), (2, 1, True), (3, 3, True), (6, 2, True), (8, 4, True)]


class Plain:
    """SGD without momentum, RMSprop, Adagrad, and Adam without its first moment, with Keras's order of operations."""

    def __init__(self, weights, step):
        self.weights = [weight.copy() for weight in weights]
        self.memory = [np.zeros_like(weight) for weight in weights]
        self.number, self._step = 0, step

    def step(self, gradients, rate):
        self.number += 1
        for weight, memory, gradient in zip(self.weights, self.memory, gradients, strict=True):
            weight -= self._step(weight, memory, gradient, np.float32(rate), self.number)


def sgd(weight, memory, gradient, rate, number):
    return rate * gradient


def adam(weight, memory, gradient, rate, number):
    memory += (np.square(gradient) - memory) * np.float32(1 - 0.999)
    alpha = rate * np.sqrt(1 - np.float32(0.999) ** np.float32(number))
    return gradient * alpha / (np.sqrt(memory) + np.float32(1e-7))


def adamw(weight, memory, gradient, rate, number):
    decayed = weight - weight * np.float32(0.01) * rate
    return weight - decayed + adam(weight, memory, gradient, rate, number)


def adamax(weight, memory, gradient, rate, number):
    memory[:] = np.maximum(np.float32(0.999) * memory, np.abs(gradient))
    return rate * gradient / (memory + np.float32(1e-7))


def rmsprop(weight, memory, gradient, rate, number):
    memory[:] = np.float32(0.9) * memory + np.float32(0.1) * np.square(gradient)
    return rate * gradient / np.sqrt(memory + np.float32(1e-7))


def adagrad(weight, memory, gradient, rate, number):
    memory += np.square(gradient)
    return rate * gradient / np.sqrt(memory + np.float32(1e-7))


def first_moment(number):
    """Adam's first moment; the bias correction is part of the velocity."""
    power = tf.pow(tf.constant(0.9), tf.cast(number, tf.float32)).numpy()  # NumPy's result may differ in the last bit
    return simulation.Momentum((np.float32(0.9) - power) / (1 - power), np.float32(0.1) / (1 - power))


def constant(decay, nesterov=False):
    return lambda number: simulation.Momentum(decay, 1.0, nesterov)


def of_layers(kind, **options):
    return lambda weights: kind(weights, [True, False], **options)


# The optimizer, the NumPy optimizer that updates the weights, and the momentum of each step.
OPTIMIZERS = {
    "SGD": (lambda: keras.optimizers.SGD(RATE), lambda weights: Plain(weights, sgd), constant(0.0)),
    "momentum": (lambda: keras.optimizers.SGD(RATE, 0.9), lambda weights: Plain(weights, sgd), constant(0.9)),
    "Nesterov": (
        lambda: keras.optimizers.SGD(RATE, 0.9, nesterov=True),
        lambda weights: Plain(weights, sgd),
        constant(0.9, True),
    ),
    "Adam": (lambda: keras.optimizers.Adam(RATE), lambda weights: Plain(weights, adam), first_moment),
    "AdamW": (
        lambda: keras.optimizers.AdamW(RATE, weight_decay=0.01),
        lambda weights: Plain(weights, adamw),
        first_moment,
    ),
    "Adamax": (lambda: keras.optimizers.Adamax(RATE), lambda weights: Plain(weights, adamax), first_moment),
    "RMSprop": (
        lambda: keras.optimizers.RMSprop(RATE, momentum=0.5),
        lambda weights: Plain(weights, rmsprop),
        constant(0.5),
    ),
    "Adagrad": (
        lambda: keras.optimizers.Adagrad(RATE, initial_accumulator_value=0.0),
        lambda weights: Plain(weights, adagrad),
        constant(0.0),
    ),
    "LARS": (
        lambda: LARS(RATE, momentum=0.9, parallel=False),
        of_layers(layerwise.Lars, momentum=0.0),
        constant(0.9),
    ),
    "LAMB": (lambda: LAMB(RATE, parallel=False), of_layers(layerwise.Lamb, beta_1=0.0), first_moment),
}
RECIPES = {
    "topk": (lambda: hvd.recipes.topk(0.1), lambda shape: simulation.Flat(shape, SIZE, simulation.exact, 0.1)),
    "hitopk": (
        lambda: hvd.recipes.hitopk(0.1),
        lambda shape: simulation.Hierarchical(shape, SIZE, simulation.searched(), 0.1),
    ),
}


def combinations(flat, by_nodes, optimizers, first, others):
    """The cases to test, as (recipe, optimizer, *grid): all optimizers on the first grid.

    By nodes, Adam, LARS and LAMB run on all grids, and each of the others on one of them in turn: for element-wise
    optimizers it does not matter which part of a vector a rank has. Flat, Adam runs on all grids. With
    HVD_SPARSE_EVERY_GRID=1 in the environment all optimizers run on all grids, by nodes. The quick tier has the first
    grid, flat for Adam only.
    """
    found = []
    for recipe, (number, name) in itertools.product((flat, by_nodes), enumerate(optimizers)):
        in_turn = [others[number % len(others)]]
        by_nodes_on = others if EVERY_GRID or name in ON_ALL_GRIDS else in_turn
        flat_on = others if name == "Adam" else []
        for grid in (first, *(flat_on if recipe == flat else by_nodes_on)):
            alone = recipe == flat and name != "Adam"
            marks = [pytest.mark.thorough] * (grid != first or alone)
            found.append(pytest.param(recipe, name, *grid, marks=marks))
    return found


def weights():
    return [np.random.default_rng(7).standard_normal(shape).astype(np.float32) for shape in SHAPES.values()]


def gradients(rank, step):
    random = np.random.default_rng([rank, step])
    return [random.standard_normal(shape).astype(np.float32) for shape in SHAPES.values()]


def distributed(optimizer, recipe, grid, **options):
    """As `hvd.DistributedOptimizer` makes it, on ranks that are threads."""
    exchange = GradientExchange(recipe, momentum=momentum.of(optimizer, slots.momenta), **options)
    exchange.grid = lambda: grid
    exchanging.distribute(optimizer, exchange)
    return optimizer


def velocity_of(optimizer):
    (state,) = optimizer.exchange.states
    return next(part.velocity.numpy() for part in state.submodules if hasattr(part, "velocity"))


def trained(make, recipe, ranks, local_size, distribute=distributed, seen=velocity_of):
    """Each rank's weights after each step, and the value of `seen`, by default the velocity, for its optimizer."""

    def one_rank(grid):
        optimizer = distribute(make(), recipe, grid, name="trained")
        variables = [keras.Variable(value, name=name) for name, value in zip(SHAPES, weights(), strict=True)]
        found = []
        for step in range(STEPS):
            mine = [tf.constant(gradient) for gradient in gradients(grid.world.rank, step)]
            optimizer.apply(mine, variables)
            found.append(([variable.numpy() for variable in variables], seen(optimizer)))
        return found

    return threads.run(ranks, local_size, one_rank)


def packed(pieces):
    """The bucket of one rank's gradients."""
    named = dict(zip(SHAPES, pieces, strict=True))
    return np.concatenate([named[name].ravel() for name in ORDER])


def unpacked(vector):
    named, begin = {}, 0
    for name in ORDER:
        size = int(np.prod(SHAPES[name]))
        named[name], begin = vector[begin : begin + size].reshape(SHAPES[name]), begin + size
    return [named[name] for name in SHAPES]


@pytest.mark.parametrize(
    "recipe, name, ranks, local_size, masking",
    combinations("topk", "hitopk", OPTIMIZERS, (4, 2, True), [*GRIDS, (4, 2, False)]),
)
def test_every_step_is_that_of_numpy(recipe, name, ranks, local_size, masking):
    make, moving, momentum_of = OPTIMIZERS[name]
    make_recipe, simulate = RECIPES[recipe]
    simulated, model = simulate(Shape(ranks, local_size)), moving(weights())
    ran = trained(make, hvd.recipes.momentum_corrected(make_recipe(), masking=masking), ranks, local_size)
    for step in range(STEPS):
        simulated.momentum = momentum_of(step + 1)._replace(masking=masking)
        mean = simulated.step([packed(gradients(rank, step)) for rank in range(ranks)])
        model.step(unpacked(mean), RATE)
        for rank in range(ranks):
            own, velocity = ran[rank][step]
            begin, end = (0, SIZE) if recipe == "topk" else simulation.shard_ends(SIZE, local_size)[rank % local_size]
            simulation.same_bits(velocity, simulated.velocity[rank, begin:end])
            for weight, expected in zip(own, model.weights, strict=True):
                np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("nesterov", [False, True])
def test_where_all_is_sent_it_is_the_dense_optimizer(nesterov):
    def make():
        return keras.optimizers.SGD(RATE, 0.5, nesterov=nesterov)

    sparse = trained(make, hvd.recipes.momentum_corrected(hvd.recipes.hitopk(1.0)), 4, 2)

    def dense(grid):
        optimizer = distributed(make(), hvd.recipes.dense(), grid, name="dense")
        variables = [keras.Variable(value, name=name) for name, value in zip(SHAPES, weights(), strict=True)]
        for step in range(STEPS):
            optimizer.apply([tf.constant(gradient) for gradient in gradients(grid.world.rank, step)], variables)
        return [variable.numpy() for variable in variables]

    for own, expected in zip(sparse[0][-1][0], threads.run(4, 2, dense)[0], strict=True):
        np.testing.assert_allclose(own, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


# ---- on one rank ----


def corrected(density=0.25):
    return hvd.recipes.momentum_corrected(hvd.recipes.topk(density))


@pytest.mark.parametrize("in_graph", [True, False])
def test_the_config_keeps_the_momentum_that_the_step_leaves_out(in_graph):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, 0.5), aggregator=corrected(1.0))
    variable = keras.Variable(np.zeros(4, "f4"))
    run = tf.function(lambda gradient: optimizer.apply([gradient], [variable])) if in_graph else None
    for _ in range(3):
        run(tf.ones([4])) if run else optimizer.apply([tf.ones([4])], [variable])
    np.testing.assert_array_equal(variable, np.full(4, -(1 + 1.5 + 1.75), "f4"))
    assert optimizer.momentum == optimizer.get_config()["momentum"] == 0.5
    assert not any(np.asarray(slot).any() for slot in optimizer.momentums)


def test_local_variables_and_rows_keep_the_optimizers_momentum():
    """Their gradients do not go through the selection, so that no other rank has their momentum."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, 0.5), aggregator=corrected(1.0))
    names = ("shared", "local", "table")
    shared, local, table = variables = [keras.Variable(np.zeros((2, 2), "f4"), name=name) for name in names]
    optimizer.register_local_var(local)
    for _ in range(3):
        rows = tf.IndexedSlices(tf.ones([2, 2]), tf.range(2), tf.constant([2, 2]))
        optimizer.apply([tf.ones([2, 2]), tf.ones([2, 2]), rows], variables)
    for variable in (shared, local, table):
        np.testing.assert_array_equal(variable, np.full((2, 2), -(1 + 1.5 + 1.75), "f4"))
    used = {slot.path.rpartition("/")[2]: bool(np.asarray(slot).any()) for slot in optimizer.momentums}
    assert used == {"shared_momentum": False, "local_momentum": True, "table_momentum": True}


def test_a_line_says_what_was_taken_over(capfd):
    hvd.DistributedOptimizer(keras.optimizers.Adam(0.1, beta_1=0.8), aggregator=corrected())
    assert capfd.readouterr().out == ("hvd_sparse: the exchange takes over the momentum of Adam (beta_1=0.8)\n")


@pytest.mark.parametrize("kind", [keras.optimizers.Nadam, keras.optimizers.Lion, keras.optimizers.Ftrl])
def test_an_optimizer_whose_momentum_is_of_another_kind_is_refused_by_name(kind):
    with pytest.raises(ValueError, match=f"take over the momentum of {kind.__name__}: use one of SGD, "):
        hvd.DistributedOptimizer(kind(0.1), aggregator=corrected())


def test_momentum_in_the_recipe_and_in_the_optimizer_is_refused():
    recipe = hvd.recipes.momentum_corrected(hvd.recipes.topk(0.1), 0.9)
    with pytest.raises(ValueError, match="has its own momentum"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, 0.9), aggregator=recipe)
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), aggregator=recipe)


@pytest.mark.parametrize(
    "recipe, told",
    [
        (hvd.recipes.hitopk(0.01), "known to end worse than dense training"),
        (hvd.recipes.auto(0.01), "known to end worse than dense training"),
        (hvd.recipes.momentum_corrected(hvd.recipes.hitopk(0.01)), "beta_2=0.98 averages over 50 steps"),
        (hvd.recipes.warmup(hvd.recipes.hitopk(0.01), 10), None),
        (hvd.recipes.torus2d(), None),
    ],
)
def test_what_is_known_to_lose_with_adam_is_said_at_the_start(recipe, told):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.1, beta_2=0.98), aggregator=recipe)
    assert [told in str(warning.message) for warning in caught] == [True] * (told is not None)


def test_a_stage_of_a_schedule_keeps_no_momentum():
    schedule = hvd.recipes.schedule([(0, corrected()), (1, hvd.recipes.dense())])
    with pytest.raises(ValueError, match="A stage of this schedule keeps momentum"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, 0.9), aggregator=schedule)


def test_a_tape_and_an_exchange_of_ones_own_have_no_optimizer_to_ask():
    variable = tf.Variable(tf.ones([8]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable**2)
    with pytest.raises(ValueError, match="has no optimizer: use hvd.DistributedOptimizer"):
        hvd.DistributedGradientTape(tape, aggregator=corrected()).gradient(loss, [variable])


def test_a_step_with_a_nan_leaves_momentum_and_weights_as_they_were():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), aggregator=corrected())
    variable = keras.Variable(np.ones(8, "f4"))
    optimizer.apply([tf.range(8.0)], [variable])

    def everything():
        state = [part.numpy() for exchange in optimizer.exchange.states for part in exchange.variables]
        return [*state, variable.numpy(), *(np.asarray(slot) for slot in optimizer.variables)]

    before = everything()
    with pytest.raises(tf.errors.InvalidArgumentError, match="Nothing was written"):
        optimizer.apply([tf.constant([np.nan, *range(7)], tf.float32)], [variable])
    for one, other in zip(before, everything(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_only_unscaled_gradients_enter_under_loss_scaling():
    scaled = hvd.LossScaleOptimizer(
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, 0.5), aggregator=corrected(1.0)), initial_scale=8.0
    )
    variable = keras.Variable(np.zeros(4, "f4"))
    for scaled_one in (8.0, np.inf, 4.0):  # a skipped step halves the scale
        scaled.apply([tf.fill([4], scaled_one)], [variable])
    np.testing.assert_array_equal(variable, np.full(4, -(1 + 1.5), "f4"))
